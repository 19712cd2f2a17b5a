"""Pictures of a cell's simulations, for videos.

MuJoCo's are drawn by our own renderer from the poses of the simulations that are scored; any other
environment draws itself (`render`, in mode rgb_array).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.request import EnvName
from rlinf_async.errors import BadInput

if TYPE_CHECKING:
    from rlinf_async.envs.rendering.poses import PoseSource

# axes: H height, W width
Frame = npt.NDArray[np.uint8]

PICTURE = 480
"""Rows and columns of pictures that are drawn here."""
DEFAULT_FPS = 30.0
"""Where an environment does not say how fast its time runs."""


class Camera(Protocol):
    """Sees the simulations of a cell."""

    fps: float
    """Simulator steps in a second of simulated time."""

    def frame(self, slot: int) -> Frame:
        """The present picture of a slot, uint8 [H, W, 3], an array of the caller's own."""
        ...

    def close(self) -> None:
        """Free what the camera holds; the environments are not its own."""
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

    def close(self) -> None:
        """Nothing: environments free their windows themselves."""

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


class PoseCamera:
    """Draws the poses of MuJoCo simulations; belongs to the thread that made it."""

    def __init__(self, source: PoseSource, *, fps: float, size: int = PICTURE) -> None:
        from rlinf_async.envs.rendering.gl import choose_gl
        from rlinf_async.envs.rendering.renderer import SharedRenderer

        self.fps = fps
        self._source = source
        self._picture = np.empty((1, size, size, 3), np.uint8)
        self._renderer = SharedRenderer(source.model, height=size, width=size, gl=choose_gl())

    def frame(self, slot: int) -> Frame:
        """The simulation of `slot` through its model's first camera."""
        self._renderer.draw(self._source.poses(np.array([slot], np.intp)), 0, self._picture)
        picture: Frame = self._picture[0].copy()
        return picture

    def close(self) -> None:
        """Free the context."""
        self._renderer.close()


def make_filmed_cell(env: EnvName, count: int) -> tuple[CellEnvs, Camera]:
    """The environments of a cell and a camera on them.

    BadInput where the environment cannot draw, or no OpenGL backend works here.
    """
    cell = make_cell(env, count)
    try:
        source = _poses_of(cell)
        if source is not None:
            return cell, PoseCamera(source, fps=steps_per_s(cell) or DEFAULT_FPS)
    except BaseException:
        cell.close()
        raise
    cell.close()
    camera = GymnasiumCamera()
    return make_cell(env, count, camera=camera), camera


def _poses_of(cell: CellEnvs) -> PoseSource | None:
    """The poses of a cell's simulations; None where they are not MuJoCo's, or not drawn so."""
    from rlinf_async.envs.rendering.poses import BatchedPoses, SinglePoses

    inner = _innermost(cell)
    if hasattr(inner, "sims"):
        return BatchedPoses(inner.sims)
    environments = getattr(inner, "environments", ())
    if not environments or not hasattr(environments[0].unwrapped, "model"):
        return None
    try:
        return SinglePoses(environments, who="video")
    except BadInput:
        return None


def _innermost(cell: CellEnvs) -> Any:
    inner: Any = cell
    while hasattr(inner, "inner"):
        inner = inner.inner
    return inner


def steps_per_s(cell: CellEnvs) -> float | None:
    """Simulator steps in a second of simulated time; None where the cell does not say."""
    inner = _innermost(cell)
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
