"""A cell whose slots lie in parts that are stepped side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep, chunk_step
from rlinf_async.envs.contract import ChunkResult, NextSeed, Observation, State, StepResult
from rlinf_async.envs.slots import Slots, SlotTable, check_seeds, step_once
from rlinf_async.execution.spaces import Spaces

# axes: n slots of the cell, m of them asked for, A action


class Part(Protocol):
    """Some slots of a cell, elsewhere; numbers are the part's own, from 0.

    A call begins with `ask_*` and ends with the `take_*` of the same name, so that all parts can
    work at once.
    """

    def ask_begin(self, slots: Slots, seeds: Sequence[int]) -> None:
        """Begin episodes."""
        ...

    def take_begin(self) -> Observation:
        """Their first observations [m, ...]."""
        ...

    def ask_advance(self, actions: npt.NDArray[Any], slots: Slots) -> None:
        """Step `slots`; `actions` [m, *A] are theirs."""
        ...

    def take_advance(self) -> tuple[Substep, Observation]:
        """What they earned and saw, [m, ...] in the order of `slots`."""
        ...

    def save_state(self) -> State:
        """As in `CellEnvs`."""
        ...

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        ...

    def close(self) -> None:
        """As in `CellEnvs`."""
        ...


class SplitCell:
    """`CellEnvs` over parts with contiguous slots."""

    def __init__(
        self,
        parts: Sequence[Part],
        sizes: Sequence[int],
        *,
        name: str,
        spaces: Spaces,
        time_limit: int | None,
        tasks: Sequence[str],
    ) -> None:
        self.slots = sum(sizes)
        self.spaces, self.time_limit, self.tasks = spaces, time_limit, tuple(tasks)
        self._parts, self._name = list(parts), name
        self._starts = np.cumsum([0, *sizes])
        self._table = SlotTable(spaces, self.slots, who=name)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        check_seeds(seeds, self.slots, self._name)
        return self.begin(np.arange(self.slots), seeds)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        chosen = np.asarray(slots, np.intp)
        asked = self._dealt(chosen)
        for number, at, own in asked:
            self._parts[number].ask_begin(own, [seeds[i] for i in at.tolist()])
        for number, at, _ in asked:
            for name, rows in self._parts[number].take_begin().items():
                self._table.now[name][chosen[at]] = rows
        self._table.begun(chosen)
        return self._table.observe(chosen)

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        return step_once(self, actions, next_seed, self._table.chosen(slots))

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        return chunk_step(self, actions, next_seed, self._table.chosen(slots))

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """Step `slots` (None: all) side by side; see `chunks.Advancing`."""
        chosen, table, count = self._table.chosen(slots), self._table, self.slots
        asked = self._dealt(chosen)
        for number, at, own in asked:
            self._parts[number].ask_advance(actions[chosen[at]], own)
        whole = Substep(np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_))
        for number, at, _ in asked:
            part, seen = self._parts[number].take_advance()
            rows = chosen[at]
            whole.reward[rows] = part.reward
            whole.terminated[rows], whole.truncated[rows] = part.terminated, part.truncated
            if part.success is not None:
                if whole.success is None:
                    whole.success = np.zeros(count, np.bool_)
                whole.success[rows] = part.success
            for name, values in seen.items():
                table.now[name][rows] = values
        table.length[chosen] += 1
        table.live[chosen] = ~(whole.terminated | whole.truncated)[chosen]
        return whole

    def observe(self, slots: Slots | None) -> Observation:
        """Copies of the present observations of `slots` (None: all)."""
        return self._table.observe(slots)

    def save_state(self) -> State:
        """As in `CellEnvs`."""
        state: State = {"live": self._table.live.copy(), "length": self._table.length.copy()}
        for number, part in enumerate(self._parts):
            state |= {f"{number}/{name}": rows for name, rows in part.save_state().items()}
        return state

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        for number, part in enumerate(self._parts):
            own = {
                name.partition("/")[2]: rows
                for name, rows in state.items()
                if name.startswith(f"{number}/")
            }
            at = slice(self._starts[number], self._starts[number + 1])
            for name, rows in part.restore_state(own).items():
                self._table.now[name][at] = rows
        self._table.live[...], self._table.length[...] = state["live"], state["length"]
        return self._table.observe(None)

    def close(self) -> None:
        """Close every part; the first failure is raised after the last is closed."""
        failures = []
        while self._parts:
            try:
                self._parts.pop().close()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _dealt(self, chosen: Slots) -> list[tuple[int, Slots, Slots]]:
        """For each part concerned: its number, places in `chosen`, and slots as it numbers them."""
        homes = np.searchsorted(self._starts, chosen, side="right") - 1
        dealt = []
        for number in np.unique(homes).tolist():
            at = np.flatnonzero(homes == number)
            dealt.append((number, at, chosen[at] - self._starts[number]))
        return dealt


def deal(count: int, parts: int) -> list[int]:
    """`count` slots in at most `parts` parts of nearly one size."""
    parts = max(1, min(parts, count))
    edges = [count * part // parts for part in range(parts + 1)]
    return [stop - start for start, stop in itertools.pairwise(edges)]
