"""Wrappers that change which actions the environments take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs, ChunkResult, NextSeed, Observation, StepResult
from rlinf_async.envs.wrappers.wrapped import Slots, WrappedCell
from rlinf_async.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRepeat:
    """Each action is taken `count` times, or until the episode ends; rewards are added up.

    Only the last of the observations is produced.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise BadInput("ActionRepeat", "count", expected="at least 2", got=self.count)

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Repeated(cell, self.count)


class _Repeated(WrappedCell):
    def __init__(self, cell: CellEnvs, count: int) -> None:
        super().__init__(cell)
        self._count = count
        if cell.time_limit is not None:
            self.time_limit = -(-cell.time_limit // count)

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        done = self.chunk_step(actions[:, None], next_seed, slots=slots)
        return StepResult(
            done.observation,
            done.reward[:, 0],
            done.terminated,
            done.truncated,
            done.finished,
            done.final_observation,
            done.success_within,
        )

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        repeated = np.repeat(actions, self._count, axis=1)
        done = self.inner.chunk_step(repeated, next_seed, slots=slots)
        done.reward = done.reward.reshape(len(actions), -1, self._count).sum(axis=2)
        done.executed = -(-done.executed // self._count)
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class StickyActions:
    """With probability `probability` the action before is taken instead (Machado et al., 2018).

    Draws come from the episode's seed, so they are the same wherever the slot is stepped.
    """

    probability: float = 0.25

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability < 1.0:
            raise BadInput(
                "StickyActions", "probability", expected="0 <= p < 1", got=self.probability
            )

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Sticky(cell, self.probability)


class _Sticky(WrappedCell):
    """Draw t of an episode is a hash of its seed and t, so that nothing but t must be saved."""

    def __init__(self, cell: CellEnvs, probability: float) -> None:
        super().__init__(cell)
        action = cell.spaces.action
        self._probability = probability
        self._last = np.zeros((cell.slots, *action.shape), action.row_dtype)
        self._fresh = np.ones(cell.slots, np.bool_)
        self._seed = np.zeros(cell.slots, np.uint64)
        self._draws = np.zeros(cell.slots, np.uint64)

    def reset(self, seeds: Any) -> Observation:
        """As in `CellEnvs`."""
        self._note(np.arange(self.slots), seeds)
        return super().reset(seeds)

    def begin(self, slots: Slots, seeds: Any) -> Observation:
        """As in `CellEnvs`."""
        self._note(slots, seeds)
        return super().begin(slots, seeds)

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        return super().step(actions, self._noting(next_seed), slots=slots)

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`; the draws of a chunk are made for all of it."""
        return super().chunk_step(actions, self._noting(next_seed), slots=slots)

    def act(self, actions: npt.NDArray[Any], slots: Slots | None) -> npt.NDArray[Any]:
        """See `WrappedCell`."""
        chosen = np.arange(self.slots) if slots is None else slots
        taken = actions.copy()
        if actions.ndim == self._last.ndim:
            self._act(taken, chosen)
        else:
            for c in range(actions.shape[1]):
                self._act(taken[:, c], chosen)
        return taken

    def own(self) -> dict[str, npt.NDArray[Any]]:
        """See `WrappedCell`."""
        return {
            "last": self._last,
            "fresh": self._fresh,
            "seed": self._seed,
            "draws": self._draws,
        }

    def _act(self, taken: npt.NDArray[Any], chosen: Slots) -> None:
        sticks = (self._uniform(chosen) < self._probability) & ~self._fresh[chosen]
        stuck = chosen[sticks]
        taken[stuck] = self._last[stuck]
        self._last[chosen] = taken[chosen]
        self._fresh[chosen] = False
        self._draws[chosen] += np.uint64(1)

    def _uniform(self, chosen: Slots) -> npt.NDArray[np.float64]:
        """SplitMix64 (Steele et al., 2014) of seed and draw, in [0, 1)."""
        with np.errstate(over="ignore"):
            step = (self._draws[chosen] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            z = self._seed[chosen] + step
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
        uniform: npt.NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) / float(1 << 53)
        return uniform

    def _note(self, slots: Slots, seeds: Any) -> None:
        self._seed[slots] = np.array([seed % 2**64 for seed in seeds], np.uint64)
        self._draws[slots], self._fresh[slots] = 0, True

    def _noting(self, next_seed: NextSeed) -> NextSeed:
        def ask(slot: int) -> int | None:
            seed = next_seed(slot)
            if seed is not None:
                self._note(np.array([slot]), [seed])
            return seed

        return ask
