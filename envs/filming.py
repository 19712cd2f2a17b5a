"""Pictures of a cell's simulations for videos, as Gymnasium's `rgb_array` draws them.

A task on `mujoco.batch` is filmed in the Gymnasium environment of the same id, whose episodes are
the same bit by bit. Imports Gymnasium only where something is filmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.request import EnvName
from rlinf_async.errors import BadInput

# axes: H height, W width
Frame = npt.NDArray[np.uint8]

DEFAULT_FPS = 30.0
"""Where an environment does not say how fast its time runs."""


class Camera(Protocol):
    """Sees the simulations of a cell."""

    fps: float
    """Simulator steps in a second of simulated time."""

    def frame(self, slot: int) -> Frame:
        """The present picture of a slot, uint8 [H, W, 3], an array of the caller's own."""
        ...


class GymnasiumCamera:
    """Calls `render` of the environments that it has seen being made, one for each slot."""

    def __init__(self) -> None:
        self._name = ""
        self._envs: list[Any] = []
        self.fps = DEFAULT_FPS

    def watching(self, factory: Callable[..., Any], name: str) -> Callable[[], Any]:
        """A factory of the same environments, made so that they draw `rgb_array`."""
        self._name = name

        def make() -> Any:
            env = self._drawing(factory)
            self.fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
            self._envs.append(env)
            return env

        return make

    def frame(self, slot: int) -> Frame:
        """What the environment of `slot` draws."""
        picture = np.asarray(self._envs[slot].render())
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise BadInput(
                f"environment {self._name!r}",
                "its render() gave no picture",
                expected="uint8 [H, W, 3]",
                got=f"{picture.dtype} {picture.shape}",
            )
        return picture.copy()

    def _drawing(self, factory: Callable[..., Any]) -> Any:
        who = f"environment {self._name!r}"
        try:
            env = factory(render_mode="rgb_array")
        except TypeError as cause:
            raise BadInput(
                who,
                f"it cannot be filmed: {cause}",
                fix="let its factory take render_mode, as gymnasium.make does",
            ) from cause
        if getattr(env, "render_mode", None) != "rgb_array":
            modes = (getattr(env, "metadata", None) or {}).get("render_modes", ())
            raise BadInput(who, "it cannot be filmed", expected="render mode rgb_array", got=modes)
        _draw_fast(env)
        return env


def make_filmed_cell(env: EnvName, count: int) -> tuple[CellEnvs, Camera]:
    """The environments of a cell and a camera on them.

    BadInput where the environment cannot draw, or Gymnasium is not installed.
    """
    camera = GymnasiumCamera()
    return make_cell(env, count, camera=camera), camera


def steps_per_s(cell: CellEnvs) -> float | None:
    """Simulator steps in a second of simulated time; None where the cell does not say."""
    inner: Any = cell
    while hasattr(inner, "inner"):
        inner = inner.inner
    if hasattr(inner, "sims"):
        return 1.0 / float(inner.sims.dt)
    fps = getattr(inner, "fps", None)
    return None if fps is None else float(fps)


def _draw_fast(env: Any) -> None:
    """Without multisampling and shadows, which take most of the time where no GPU draws."""
    model = getattr(getattr(env, "unwrapped", env), "model", None)
    quality = getattr(getattr(model, "vis", None), "quality", None)
    if quality is not None:
        quality.offsamples, quality.shadowsize = 0, 0
