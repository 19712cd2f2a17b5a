"""The last few observations side by side, so that a policy without memory sees motion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs, Observation
from rlinf_async.envs.wrappers.observations import spec_of
from rlinf_async.envs.wrappers.wrapped import Slots, WrappedCell, with_observation
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStack:
    """The last `count` observations, oldest first; an episode begins with copies of its first.

    Vectors are put one behind the other, images along their channels (the shorter of the first and
    the last axis). In chunks one frame is what is seen at a chunk's end.
    """

    count: int
    names: tuple[str, ...] = ()
    """Which observations; empty for all of them."""

    def __post_init__(self) -> None:
        if self.count < 2:
            raise BadInput("FrameStack", "count", expected="at least 2", got=self.count)

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        names = self.names or tuple(spec.name for spec in cell.spaces.observation)
        chosen = {name: spec_of(cell, name, "FrameStack") for name in names}
        return _Stacked(cell, self.count, chosen)


class _Stacked(WrappedCell):
    def __init__(self, cell: CellEnvs, count: int, chosen: dict[str, ArraySpec]) -> None:
        axes = {name: stacking_axis(spec.shape) for name, spec in chosen.items()}
        specs = [
            replace(
                spec,
                shape=_longer(spec.shape, axes[spec.name], count),
                counts=spec.counts * count,
                starts=spec.starts * count,
            )
            if spec.name in chosen
            else spec
            for spec in cell.spaces.observation
        ]
        super().__init__(cell, with_observation(cell.spaces, specs))
        self._axes = axes
        self._frames: dict[str, npt.NDArray[Any]] = {
            name: np.zeros((cell.slots, count, *spec.shape), spec.dtype)
            for name, spec in chosen.items()
        }

    def started(self, slots: Slots, observation: Observation) -> Observation:
        """See `WrappedCell`."""
        for name, frames in self._frames.items():
            frames[slots] = observation[name][:, None]
        return self._stacked(slots, observation)

    def stepped(self, slots: Slots, observation: Observation) -> Observation:
        """See `WrappedCell`."""
        for name, frames in self._frames.items():
            moved = np.roll(frames[slots], -1, axis=1)
            moved[:, -1] = observation[name]
            frames[slots] = moved
        return self._stacked(slots, observation)

    def now(self, present: Observation) -> Observation:
        """See `WrappedCell`."""
        return self._stacked(np.arange(self.slots), present)

    def restored(self, observation: Observation) -> Observation:
        """See `WrappedCell`."""
        return self.now(observation)

    def own(self) -> dict[str, npt.NDArray[Any]]:
        """See `WrappedCell`."""
        return self._frames

    def _stacked(self, slots: Slots, observation: Observation) -> Observation:
        stacked = dict(observation)
        for name, frames in self._frames.items():
            axis = self._axes[name]
            parts = np.moveaxis(frames[slots], 1, axis + 1)
            shape = _longer(frames.shape[2:], axis, frames.shape[1])
            stacked[name] = parts.reshape(len(slots), *shape)
        return stacked


def stacking_axis(shape: tuple[int, ...]) -> int:
    """Where frames are put one behind the other: the channels of images, else the first axis."""
    if len(shape) == 3 and shape[2] < shape[0]:
        return 2
    return 0


def _longer(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    if not shape:
        return (count,)
    return (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])
