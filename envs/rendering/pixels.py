"""Camera images as observations of environments on MuJoCo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep, chunk_step
from rlinf_async.envs.contract import ChunkResult, NextSeed, Observation, State, StepResult
from rlinf_async.envs.slots import Slots, step_once
from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution.spaces import ArraySpec

if TYPE_CHECKING:
    from rlinf_async.envs.rendering.poses import Poses, PoseSource
    from rlinf_async.envs.rendering.renderer import Images, SharedRenderer

IMAGE = "image"
"""Name of the observation where one camera draws; several are named after their cameras."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """What `run.envs(..., pixels=Pixels(...))` draws: uint8 [height, width, 3] of each camera."""

    cameras: tuple[str, ...] = ()
    """Names, or numbers as text; empty for the model's first camera."""
    height: int = 84
    width: int = 84
    keep: tuple[str, ...] = ()
    """Other observations that stay, such as "state" or "instruction"."""
    quality: Literal["fast", "full"] = "fast"
    """"full" has shadows, reflections, sky and multisampling, and takes up to 30 times as long."""
    place: Literal["beside", "own"] = "beside"
    """"own": a host of its own draws them, apart from the simulations; the images are the same."""
    gl: str = ""
    """The OpenGL backend; empty: chosen when the environments are described."""

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise BadInput("Pixels", "size", expected=">= 1", got=(self.height, self.width))
        if self.quality not in ("fast", "full"):
            raise BadInput("Pixels", "quality", expected="'fast' or 'full'", got=self.quality)
        if self.place not in ("beside", "own"):
            raise BadInput("Pixels", "place", expected="'beside' or 'own'", got=self.place)


class Drawer(Protocol):
    """Draws the simulations of a cell: a renderer of this thread, or the way to another."""

    def draw_all(self, poses: Poses, images: Images) -> None:
        """Draw every row of `poses` into `images` [cameras, m, H, W, 3], uint8."""
        ...

    def close(self) -> None:
        """Free what it holds. May be called twice."""
        ...


class PixelCell:
    """`CellEnvs` that adds images to those of another, which steps and observes as before.

    Drawn are the observations that somebody will see: at a step's or chunk's end, and the last one
    of an episode.
    """

    def __init__(
        self,
        cell: Any,
        source: PoseSource,
        drawer: Drawer,
        pixels: Pixels,
        *,
        cameras: tuple[str, ...],
    ) -> None:
        self.inner = cell
        self.slots = cell.slots
        self.time_limit, self.tasks = cell.time_limit, cell.tasks
        self.source, self.pixels = source, pixels
        self._drawer, self._keep = drawer, pixels.keep
        names = cameras if len(cameras) > 1 else (IMAGE,)
        self._names, self._size = names, (pixels.height, pixels.width, 3)
        self.images_shape = (len(names), *self._size)
        """Of one slot's images: cameras, height, width, 3."""
        self._live = np.zeros(cell.slots, np.bool_)
        """Slots that are within an episode."""
        self.spaces = replace(cell.spaces, observation=self._specs(pixels))

    def reset(self, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        return self.begin(np.arange(self.slots), seeds)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        chosen = np.asarray(slots, np.intp)
        return self._with_images(self.begin_undrawn(chosen, seeds), chosen)

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        return step_once(_Undrawn(self), actions, next_seed, self._chosen(slots))

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        return chunk_step(_Undrawn(self), actions, next_seed, self._chosen(slots))

    def observe(self, slots: Slots | None) -> Observation:
        """The present observations of `slots` (None: all), drawn now."""
        return self._with_images(self.inner.observe(slots), slots)

    def save_state(self) -> State:
        """As in `CellEnvs`; images follow from the rest."""
        return {**self.inner.save_state(), "drawn/live": self._live.copy()}

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        self._live[...] = state["drawn/live"]
        inner = {name: values for name, values in state.items() if name != "drawn/live"}
        return self._with_images(self.inner.restore_state(inner), None)

    def close(self) -> None:
        """As in `CellEnvs`."""
        self._drawer.close()
        self.inner.close()

    def begin_undrawn(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """Begin episodes in `slots`; their images are for whoever observes them."""
        begun: Observation = self.inner.begin(slots, seeds)
        self._live[slots] = True
        return begun

    def advance_undrawn(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """Step `slots` (None: all)."""
        part: Substep = self.inner.advance(actions, slots)
        self._live &= ~(part.terminated | part.truncated)
        return part

    def _chosen(self, slots: Slots | None) -> Slots | None:
        """The slots to step, None for all; retired ones are not."""
        if slots is None:
            return None if self._live.all() else np.flatnonzero(self._live)
        return np.asarray(slots, np.intp)

    def _with_images(self, observation: Observation, slots: Slots | None) -> Observation:
        kept = {name: observation[name] for name in self._keep}
        poses = self.source.poses(slots)
        count = len(next(iter(poses.values())))
        images = np.empty((len(self._names), count, *self._size), np.uint8)
        self._drawer.draw_all(poses, images)
        return {**dict(zip(self._names, images, strict=True)), **kept}

    def _specs(self, pixels: Pixels) -> tuple[ArraySpec, ...]:
        known = {spec.name: spec for spec in self.inner.spaces.observation}
        for name in pixels.keep:
            if name not in known:
                raise BadInput(
                    "Pixels",
                    f"no observation {name!r} to keep",
                    expected=", ".join(known),
                    fix=nearest(name, known),
                )
        images = [ArraySpec(name=name, shape=self._size, dtype="uint8") for name in self._names]
        return (*images, *(known[name] for name in pixels.keep))


class _Undrawn:
    """The cell as `chunks` and `slots` see it: episodes begin without being drawn at once."""

    def __init__(self, cell: PixelCell) -> None:
        self._cell = cell
        self.slots = cell.slots

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """Step without drawing."""
        return self._cell.advance_undrawn(actions, slots)

    def observe(self, slots: Slots | None) -> Observation:
        """Draw."""
        return self._cell.observe(slots)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """Begin without drawing."""
        return self._cell.begin_undrawn(slots, seeds)


def with_pixels(cell: Any, pixels: Pixels, *, name: str, drawer: Drawer | None = None) -> PixelCell:
    """`cell` with camera images; BadInput where it cannot be drawn.

    `drawer` draws them instead of a renderer of this thread.
    """
    from rlinf_async.envs.batched import BatchedCell
    from rlinf_async.envs.rendering.poses import BatchedPoses, SinglePoses
    from rlinf_async.envs.rendering.renderer import camera_names

    source: PoseSource
    if isinstance(cell, BatchedCell):
        source = BatchedPoses(cell.sims)
    elif hasattr(cell, "environments"):
        source = SinglePoses(cell.environments, who=f"environment {name!r}")
    else:
        raise BadInput(f"environment {name!r}", "vectors of environments cannot be drawn")
    cameras = camera_names(source.model, pixels.cameras)
    drawer = drawer or shared_renderer(source.model, pixels)
    try:
        return PixelCell(cell, source, drawer, pixels, cameras=cameras)
    except BaseException:
        drawer.close()
        raise


def shared_renderer(model: Any, pixels: Pixels) -> SharedRenderer:
    """The renderer of this thread that draws `model` as `pixels` say."""
    from rlinf_async.envs.rendering.gl import choose_gl
    from rlinf_async.envs.rendering.renderer import SharedRenderer

    return SharedRenderer(
        model,
        height=pixels.height,
        width=pixels.width,
        cameras=pixels.cameras,
        quality=pixels.quality,
        gl=pixels.gl or choose_gl(),
    )
