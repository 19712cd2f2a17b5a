"""Whether what environments return can be learned from, over all slots of a cell at once.

Costs a few microseconds for each observation and step; `EnvRequest.checks` turns it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import (
    CellEnvs,
    ChunkResult,
    EnvMismatch,
    NextSeed,
    Observation,
    State,
    StepResult,
)
from rlinf_async.execution.spaces import ArraySpec

# axes: n slots of the cell, m slots looked at
Slots = npt.NDArray[np.intp]
Limits = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Result = TypeVar("Result", StepResult, ChunkResult)

_SUM_OF_SQUARES = 65_536
"""Floats from which one pass of BLAS is quicker than `isfinite`, which writes a mask."""


class ValueChecks:
    """Finds NaN, infinities and integers out of their range, and names slot and key.

    `limits` are the smallest and largest values of integer observations, by name.
    """

    def __init__(self, name: str, first_slot: int, limits: dict[str, Limits]) -> None:
        self._name, self._first_slot, self._limits = name, first_slot, limits

    def observations(self, rows: Observation, slots: Slots) -> None:
        """Check rows [m, ...] of `slots`."""
        for key, values in rows.items():
            if values.dtype.kind == "f":
                if not all_finite(values):
                    self._refuse(key, values, ~np.isfinite(values), slots, "a finite number")
            elif (limits := self._limits.get(key)) is not None:
                low, high = limits
                outside = values < low
                outside |= values > high
                if outside.any():
                    self._refuse(key, values, outside, slots, _range(limits))

    def rewards(self, reward: npt.NDArray[np.float64]) -> None:
        """Check rewards [n] or [n, C] of the whole cell."""
        finite = np.isfinite(reward)
        if not finite.all():
            where = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise self._mismatch(where[0], "reward", "a finite number", reward[where])

    def actions(self, actions: npt.NDArray[Any], slots: Slots) -> None:
        """Check row actions [n, ...]: a NaN is the policy's doing, not the environment's."""
        if actions.dtype.kind != "f" or all_finite(actions):
            return
        for slot in slots.tolist():
            if not np.isfinite(actions[slot]).all():
                raise self._mismatch(
                    slot, "action", "finite numbers from the policy", actions[slot]
                )

    def _refuse(
        self,
        key: str,
        values: npt.NDArray[Any],
        wrong: npt.NDArray[np.bool_],
        slots: Slots,
        expected: str,
    ) -> None:
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        at = f" at {list(where[1:])}" if len(where) > 1 else ""
        slot = int(slots[where[0]])
        raise self._mismatch(slot, f"observation {key!r}", expected, f"{values[where]}{at}")

    def _mismatch(self, slot: int, key: str, expected: str, got: object) -> EnvMismatch:
        return EnvMismatch(
            self._name, slot=self._first_slot + slot, key=key, expected=expected, got=got
        )


class CheckedCell:
    """A cell whose observations and rewards are checked on their way out."""

    def __init__(self, cell: CellEnvs, *, name: str, first_slot: int) -> None:
        self.inner, self.slots = cell, cell.slots
        self.spaces, self.time_limit = cell.spaces, cell.time_limit
        limits = {spec.name: _declared(spec) for spec in cell.spaces.observation if spec.counts}
        self._checks = ValueChecks(name, first_slot, limits)
        self._all = np.arange(cell.slots)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        return self._checked(self.inner.reset(seeds), self._all)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        return self._checked(self.inner.begin(slots, seeds), np.asarray(slots, np.intp))

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        return self._result(self.inner.step(actions, next_seed, slots=slots))

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        return self._result(self.inner.chunk_step(actions, next_seed, slots=slots))

    def save_state(self) -> State:
        """As in `CellEnvs`."""
        return self.inner.save_state()

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        return self.inner.restore_state(state)

    def close(self) -> None:
        """As in `CellEnvs`."""
        self.inner.close()

    def _result(self, result: Result) -> Result:
        self._checks.rewards(result.reward)
        if result.final_observation is not None:
            self._checks.observations(result.final_observation, result.finished)
        self._checks.observations(result.observation, self._all)
        return result

    def _checked(self, rows: Observation, slots: Slots) -> Observation:
        self._checks.observations(rows, slots)
        return rows


def _declared(spec: ArraySpec) -> Limits:
    low = np.array(spec.starts or (0,) * len(spec.counts)).reshape(spec.shape)
    return low, low + np.array(spec.counts).reshape(spec.shape) - 1


def all_finite(values: npt.NDArray[Any]) -> bool:
    """Whether an array holds neither NaN nor infinities."""
    if values.size >= _SUM_OF_SQUARES and values.flags.c_contiguous:
        flat = values.ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            # The sum of squares of finite numbers may overflow, but no NaN or infinity gets lost.
            if np.isfinite(np.dot(flat, flat)):
                return True
    return bool(np.isfinite(values).all())


def _range(limits: Limits) -> str:
    low, high = limits
    return f"values from {low} to {high}" if low.ndim == 0 else "values within its space"
