"""Wrappers that change rewards. Episode records count what comes out of the outermost wrapper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep, chunk_step
from rlinf_async.envs.contract import (
    CellEnvs,
    ChunkResult,
    NextSeed,
    Observation,
    State,
    StepResult,
)
from rlinf_async.envs.slots import step_once
from rlinf_async.envs.wrappers.wrapped import Slots, WrappedCell
from rlinf_async.errors import BadInput

Rewards = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReward:
    """reward * scale + shift."""

    scale: float = 1.0
    shift: float = 0.0

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Rewards(cell, lambda reward: reward * self.scale + self.shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipReward:
    """Rewards within [low, high]."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise BadInput("ClipReward", "bounds", expected="low < high", got=(self.low, self.high))

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Rewards(cell, lambda reward: np.clip(reward, self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformReward:
    """A named function of rewards, float64 of any shape to the same shape."""

    function: Callable[[Rewards], Rewards]

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Rewards(cell, self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessReward:
    """1 for a step that succeeds, 0 for all others; success ends the episode (`terminated`)."""

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _EndsWithSuccess(cell)


class _Rewards(WrappedCell):
    def __init__(self, cell: CellEnvs, change: Callable[[Rewards], Any]) -> None:
        super().__init__(cell)
        self._change = change

    def earn(self, reward: Rewards, stepped: npt.NDArray[np.bool_]) -> Rewards:
        """See `WrappedCell`."""
        return np.where(stepped, self._change(reward), 0.0)


class _EndsWithSuccess(WrappedCell):
    """Sees every simulator step, also within chunks, so that an episode ends where it succeeded."""

    def __init__(self, cell: CellEnvs) -> None:
        super().__init__(cell)
        self._live = np.zeros(cell.slots, np.bool_)
        """Slots within an episode, as seen from outside; the cell inside may think otherwise."""
        self._now: Observation = {}
        self._told = False
        """Whether the environment has ever said anything of success."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        return self.begin(np.arange(self.slots), seeds)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        rows = self.inner.begin(slots, seeds)
        for name, values in rows.items():
            if name not in self._now:
                self._now[name] = np.zeros((self.slots, *values.shape[1:]), values.dtype)
            self._now[name][slots] = values
        self._live[slots] = True
        return rows

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        return step_once(self, actions, next_seed, self._chosen(slots))

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        return chunk_step(self, actions, next_seed, self._chosen(slots))

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """See `chunks.Advancing`."""
        chosen = self._chosen(slots)
        everywhere = chosen.size == self.slots
        result = self.inner.step(actions, _retire, slots=None if everywhere else chosen)
        self._now = result.observation
        succeeded = np.zeros(self.slots, np.bool_)
        if result.success is not None:
            self._told = True
            succeeded[chosen] = result.success[chosen]
        terminated = result.terminated | succeeded
        if len(result.finished) and not self._told:
            raise BadInput(
                "SuccessReward",
                "an episode ended, and the environment has said nothing of success",
                expected="`success` or `is_success` in the info of a step",
            )
        self._live[terminated | result.truncated] = False
        return Substep(succeeded.astype(np.float64), terminated, result.truncated, succeeded)

    def observe(self, slots: Slots | None) -> Observation:
        """See `chunks.Advancing`."""
        at = slice(None) if slots is None else slots
        return {name: rows[at].copy() for name, rows in self._now.items()}

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        self._now = super().restore_state(state)
        return self.observe(None)

    def own(self) -> dict[str, npt.NDArray[Any]]:
        """See `WrappedCell`."""
        return {"live": self._live}

    def _chosen(self, slots: Slots | None) -> Slots:
        return np.flatnonzero(self._live) if slots is None else np.asarray(slots, np.intp)


def _retire(slot: int) -> None:
    """The cell inside begins nothing by itself."""
