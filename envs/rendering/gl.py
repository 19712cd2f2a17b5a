"""Which OpenGL draws without a screen: EGL or OSMesa, tried in a process of its own.

A backend that is missing may end the process that tries it, and a process keeps the one that it
loaded first, so trying happens elsewhere and before.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

from rlinf_async.envs.cache import cache_folder
from rlinf_async.errors import BadInput, PeerTimeout

VARIABLE = "MUJOCO_GL"
BACKENDS = ("egl", "osmesa")
TRY_DEADLINE_S = 30.0
"""A first context takes about half a second; some drivers hang instead of failing."""
TURN_DEADLINE_S = 60.0
"""How long others may take to make their contexts."""
PACKAGES = "libegl1 libegl-mesa0 libgl1-mesa-dri libopengl0 libosmesa6"
"""Debian packages that bring both."""

_TRY = """
import importlib, os, mujoco
context = importlib.import_module("mujoco." + os.environ["MUJOCO_GL"]).GLContext(16, 16)
context.make_current()
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
context.free()
print("drawn")
"""


@functools.lru_cache(maxsize=1)
def choose_gl() -> str:
    """The backend to draw with: what MUJOCO_GL says, else the first that works.

    Raises:
        BadInput: none works; the message has each one's last line and the packages to install.
    """
    wanted = os.environ.get(VARIABLE, "")
    failures = []
    for backend in (wanted,) if wanted else BACKENDS:
        failure = _failure_of(backend)
        if not failure:
            return backend
        failures.append(f"{backend}: {failure}")
    raise BadInput(
        "pixels",
        f"no OpenGL backend can draw here ({'; '.join(failures)})",
        fix=f"apt-get install {PACKAGES}",
    )


def settle(backend: str) -> None:
    """Draw with `backend` in this process; must come before anything loads OpenGL."""
    os.environ[VARIABLE] = backend
    # llvmpipe's own threads would fight with those of other workers: it draws in ours.
    os.environ.setdefault("LP_NUM_THREADS", "0")


@contextlib.contextmanager
def turn(limit_s: float = TURN_DEADLINE_S) -> Iterator[None]:
    """Only one process of this user at a time makes a context: some drivers hang otherwise.

    Raises:
        PeerTimeout: the turn did not come within the limit, as when such a driver hangs elsewhere.
    """
    path = cache_folder() / "first-render.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    # The kernel has no wait for a lock with a limit; a thread that waits may be left alone.
    guard, taken, given_up = threading.Lock(), threading.Event(), threading.Event()

    def wait() -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with guard:
            if given_up.is_set():
                os.close(lock)
            taken.set()

    threading.Thread(target=wait, daemon=True).start()
    taken.wait(limit_s)
    with guard:
        if not taken.is_set():
            given_up.set()
    if given_up.is_set():
        raise PeerTimeout(
            f"gave up after {limit_s:g} s waiting for another process to make its OpenGL context"
        )
    try:
        yield
    finally:
        os.close(lock)


def _failure_of(backend: str) -> str:
    """Empty if `backend` can draw, else why not."""
    environment = os.environ | {VARIABLE: backend, "LP_NUM_THREADS": "0"}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TRY_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {TRY_DEADLINE_S:g} s"
    # OSMesa and EGL may complain when they are torn down; what counts is the picture.
    if "drawn" in tried.stdout:
        return ""
    lines = tried.stderr.strip().splitlines()
    return lines[-1] if lines else f"ended with {tried.returncode}"
