"""Frames per second of our renderer beside Gymnasium's `rgb_array`, on one core.

Each side is a process of its own on the same core, with the defaults that its users get: ours
draws 8 slots of a cell from their world poses, theirs one environment. Only drawing is timed, in
CPU time; steps between are not. A ratio is the median over interleaved runs. Meta-World is drawn in
its own interpreter, if `python -m rlinf_async venvs install metaworld` has made it.

    python tools/bench/render_throughput.py [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import ONE_THREAD, ROOT, emit, machine_to_itself, median

SLOTS = 8
SIZES = (64, 84, 128, 224)
ENVS = ("HalfCheetah-v5", "Ant-v5")
METAWORLD = "metaworld/push-v3"
CAMERAS = {METAWORLD: "corner2"}
QUICK_CASES = [*((ENVS[0], size) for size in (64, 84, 224)), (ENVS[1], 84)]


class Ours:
    """A cell with pixels."""

    def __init__(self, env: str, size: int, gl: str) -> None:
        from rlinf_async.envs.registry import make_cell
        from rlinf_async.envs.rendering import Pixels

        cameras = (CAMERAS[env],) if env in CAMERAS else ()
        pixels = Pixels(cameras=cameras, height=size, width=size, gl=gl)
        self._cell: Any = make_cell({"env": env, "pixels": pixels, "checks": False}, SLOTS)
        self._cell.reset(range(SLOTS))
        self._rng = np.random.default_rng(0)

    def step(self) -> None:
        """Move every simulation."""
        shape = (SLOTS, *self._cell.spaces.action.shape)
        self._cell.inner.step(self._rng.uniform(-1, 1, shape).astype("float32"), lambda slot: slot)

    def draw(self) -> int:
        """Draw every slot once; the number of frames."""
        self._cell.observe(None)
        return SLOTS


class Theirs:
    """One environment with `render_mode="rgb_array"`."""

    def __init__(self, env: str, size: int) -> None:
        import gymnasium

        how: dict[str, Any] = {"render_mode": "rgb_array", "width": size, "height": size}
        if env == METAWORLD:
            importlib.import_module("metaworld")  # it registers its ids
            how |= {"env_name": env.partition("/")[2], "camera_name": CAMERAS[env]}
            env = "Meta-World/MT1"
        self._env = gymnasium.make(env, **how)
        self._env.reset(seed=0)
        self._env.action_space.seed(0)

    def step(self) -> None:
        """Move it."""
        _, _, terminated, truncated, _ = self._env.step(self._env.action_space.sample())
        if terminated or truncated:
            self._env.reset()

    def draw(self) -> int:
        """One frame."""
        self._env.render()
        return 1


def frames_per_s(step: Callable[[], None], draw: Callable[[], int], least_s: float) -> float:
    """Frames in a CPU second of drawing."""
    frames, took_s = 0, 0.0
    while took_s < least_s:
        step()
        start_s = time.process_time()
        frames += draw()
        took_s += time.process_time() - start_s
    return frames / took_s


class Side:
    """One side in a process; it measures whenever it is asked to."""

    def __init__(self, kind: str, env: str, size: int, gl: str, least_s: float) -> None:
        python = str(metaworld_python()) if env == METAWORLD else sys.executable
        command = [python, __file__, "--side", kind, env, str(size), gl, str(least_s)]
        environment = os.environ | ONE_THREAD | {"MUJOCO_GL": gl, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def frames_per_s(self) -> float:
        """One run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def side(kind: str, env: str, size: str, gl: str, least_s: str) -> None:
    """The process of one side."""
    drawer = Ours(env, int(size), gl) if kind == "ours" else Theirs(env, int(size))
    frames_per_s(drawer.step, drawer.draw, 0.05)
    for _ in sys.stdin:
        print(frames_per_s(drawer.step, drawer.draw, float(least_s)), flush=True)


def compare(env: str, size: int, gl: str, rounds: int, least_s: float) -> list[tuple[float, float]]:
    """Frames per second of ours and theirs, in turns."""
    sides = [Side(kind, env, size, gl, least_s) for kind in ("ours", "theirs")]
    try:
        return [(sides[0].frames_per_s(), sides[1].frames_per_s()) for _ in range(rounds)]
    finally:
        for each in sides:
            each.close()


def metaworld_python() -> Path | None:
    """The interpreter that Meta-World lives in; None where it is not installed."""
    from rlinf_async.errors import BadInput
    from rlinf_async.hardware.interpreters import interpreter_of, named

    try:
        return interpreter_of(named("metaworld"))
    except BadInput as missing:
        print(f"note: metaworld is left out: {missing}", file=sys.stderr)
        return None


def cases_of(*, quick: bool) -> list[tuple[str, int]]:
    """What to draw, and at which sizes."""
    cases = QUICK_CASES if quick else [(env, size) for env in ENVS for size in SIZES]
    if metaworld_python() is None:
        return cases
    return [*cases, *((METAWORLD, size) for size in ((84,) if quick else SIZES))]


def main() -> None:
    """Measure and print."""
    from rlinf_async.envs.rendering.gl import choose_gl

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds")
    quick = parser.parse_args().quick
    rounds, least_s = (3, 0.2) if quick else (9, 0.5)
    cases = cases_of(quick=quick)
    gl = choose_gl()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    ours_per_s, theirs_per_s, ratios = {}, {}, {}
    with machine_to_itself():
        for env, size in cases:
            name = f"{env.partition('/' if env == METAWORLD else '-')[0]}-{size}"
            runs = compare(env, size, gl, rounds, least_s)
            ours_per_s[name] = median(ours for ours, _ in runs)
            theirs_per_s[name] = median(theirs for _, theirs in runs)
            ratios[name] = median(ours / theirs for ours, theirs in runs)
    os.sched_setaffinity(0, cores)
    emit(
        "render_throughput",
        ratio_vs_gymnasium=ratios,
        frames_per_s=ours_per_s,
        gymnasium_frames_per_s=theirs_per_s,
        gl=gl,
        n=rounds,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(*sys.argv[2:])
    else:
        main()
