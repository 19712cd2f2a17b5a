"""A cell that is stepped as a whole, with its present work on the board and its values checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.checks import Limits, ValueChecks
from rlinf_async.envs.contract import (
    CellEnvs,
    ChunkResult,
    NextSeed,
    Observation,
    State,
    StepResult,
)
from rlinf_async.execution.spaces import ArraySpec
from rlinf_async.hardware.activity import RESET, STEP, current, working

# axes: n slots of the cell, C sub-steps of a chunk, A action
Slots = npt.NDArray[np.intp]
Result = TypeVar("Result", StepResult, ChunkResult)


class GuardedCell:
    """Hands everything through; whatever goes wrong in the cell inside is named with its slots.

    NaN, infinities and integers out of their range are looked for in all that comes out.
    """

    def __init__(self, cell: CellEnvs, *, name: str, first_slot: int) -> None:
        self.inner, self.slots = cell, cell.slots
        self.spaces, self.time_limit = cell.spaces, cell.time_limit
        self.tasks = cell.tasks
        self._name, self._first_slot = name, first_slot
        limits = {spec.name: _declared(spec) for spec in cell.spaces.observation if spec.counts}
        self._checks = ValueChecks(name, first_slot, limits)
        self._all = np.arange(cell.slots)
        self._length = np.zeros(cell.slots, np.int64)
        """Steps of each episode, less those of `_uncounted`."""
        self._uncounted = 0
        """Steps of all live slots that are not yet in `_length`: few calls need it up to date."""
        self._longest = 0
        self._live = np.ones(cell.slots, np.bool_)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        with self._at_work(RESET):
            rows = self.inner.reset(seeds)
        return self._begun(rows, self._all)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        with self._at_work(RESET):
            rows = self.inner.begin(slots, seeds)
        return self._begun(rows, np.asarray(slots, np.intp))

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        # Written out, since a context manager costs as much as a note, twice.
        line = current().line()
        line.note(STEP, self._first_slot, self._longest, self.slots)
        try:
            result = self.inner.step(actions, self._noting(next_seed), slots=slots)
        except Exception as error:
            self._blame(error, STEP)
            raise
        finally:
            line.rest()
        if slots is None:
            self._uncounted += 1
            self._longest += 1
        else:
            self._count()
            self._length[slots] += 1
            self._longest = int(self._length.max())
        return self._stepped(result)

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        with self._at_work(STEP):
            result = self.inner.chunk_step(actions, self._noting(next_seed), slots=slots)
        self._count()
        self._length += result.executed
        self._longest = int(self._length.max())
        return self._stepped(result)

    def save_state(self) -> State:
        """As in `CellEnvs`."""
        self._count()
        own = {"guarded/length": self._length.copy(), "guarded/live": self._live.copy()}
        return self.inner.save_state() | own

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        self._uncounted = 0
        self._length[...], self._live[...] = state["guarded/length"], state["guarded/live"]
        self._longest = int(self._length.max())
        return self.inner.restore_state(
            {name: values for name, values in state.items() if not name.startswith("guarded/")}
        )

    def close(self) -> None:
        """As in `CellEnvs`."""
        self.inner.close()

    @contextlib.contextmanager
    def _at_work(self, kind: int) -> Iterator[None]:
        with working() as line:
            line.note(kind, self._first_slot, self._longest, self.slots)
            try:
                yield
            except Exception as error:
                self._blame(error, kind)
                raise

    def _blame(self, error: Exception, kind: int) -> None:
        what = "step" if kind == STEP else "reset"
        last = self._first_slot + self.slots - 1
        error.add_note(
            f"raised by {what} of {self._name}, slots {self._first_slot} to {last}, "
            f"at step {self._longest} of the longest episode"
        )

    def _noting(self, next_seed: NextSeed) -> NextSeed:
        def ask(slot: int) -> int | None:
            seed = next_seed(slot)
            self._count()
            self._live[slot] = seed is not None
            return seed

        return ask

    def _begun(self, rows: Observation, slots: Slots) -> Observation:
        self._count()
        self._length[slots], self._live[slots] = 0, True
        self._longest = int(self._length.max())
        self._checks.observations(rows, slots)
        return rows

    def _count(self) -> None:
        """Bring `_length` up to date; before `_live` changes."""
        if self._uncounted:
            self._length += self._uncounted * self._live
            self._uncounted = 0

    def _stepped(self, result: Result) -> Result:
        if result.finished.size:
            self._count()
            self._length[result.finished] = 0
            self._longest = int(self._length.max())
        self._checks.rewards(result.reward)
        if result.final_observation is not None:
            self._checks.observations(result.final_observation, result.finished)
        self._checks.observations(result.observation, self._all)
        return result


def _declared(spec: ArraySpec) -> Limits:
    low = np.array(spec.starts or (0,) * len(spec.counts)).reshape(spec.shape)
    return low, low + np.array(spec.counts).reshape(spec.shape) - 1
