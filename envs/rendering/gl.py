"""Which OpenGL draws without a screen: EGL or OSMesa, tried in a process of its own.

A backend that is missing may end the process that tries it, and a process keeps the one that it
loaded first, so trying happens elsewhere and before.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from rlinf_async.errors import BadInput

VARIABLE = "MUJOCO_GL"
BACKENDS = ("egl", "osmesa")
TRY_DEADLINE_S = 30.0
"""A first context takes about half a second; some drivers hang instead of failing."""
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
