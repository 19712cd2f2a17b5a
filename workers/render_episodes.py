"""The render worker of `episodes` mode: runs work lists, each slot one episode after another.

Axes: T steps of the row, n slots of the cell. `item[t]` says which episode a slot is in at step t,
-1 where it is in none: such slots are not stepped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_async.envs.contract import CellEnvs, ChunkResult, StepResult
from rlinf_async.envs.seeding import group_seed
from rlinf_async.errors import BadInput
from rlinf_async.execution.worker import WorkerContext
from rlinf_async.workers.episodes import EpisodeTracker
from rlinf_async.workers.render import RenderCell, RenderWorker, Row

IDLE = -1
"""Of a slot that runs no episode."""


class EpisodeRenderWorker(RenderWorker):
    """Owns the environments of some cells, and runs the episodes that it is given in them."""

    def __init__(self, context: WorkerContext, *, run_seed: int, **arguments: Any) -> None:
        self._run_seed = run_seed
        self._tasks: set[str] = set()
        super().__init__(context, run_seed=run_seed, **arguments)

    def begin_items(
        self,
        cell: int,
        batch: int,
        row: int,
        start: int,
        items: list[int],
        size: int,
        limit: int,
    ) -> None:
        """Begin the first of `items` at step `start` of the row.

        Item i is of group i // `size`, whose seed all of its episodes begin with. One that is still
        under way after `limit` steps is truncated.
        """
        recorder = self.context.recorder
        seeds = {i: group_seed(self._run_seed, batch, i // size) for i in items}
        own = self._cells[cell]
        assert isinstance(own, EpisodeCell)
        with recorder.span("render.begin", items=len(items)):
            recorder.flow("segment", cell, batch)
            own.begin_items(self.context.rows("segments", row), start, seeds, limit)

    def end_items(self, cell: int) -> dict[str, Any]:
        """Close the list: the episodes that ended, and the steps of those still under way."""
        own = self._cells[cell]
        assert isinstance(own, EpisodeCell)
        return {"cut": own.drop(), "episodes": own.end()}

    def _cell(self, envs: CellEnvs, episodes: EpisodeTracker, **how: Any) -> RenderCell:
        self._tasks |= set(envs.tasks)
        check_one_task(self._tasks)
        return EpisodeCell(envs, episodes, **how)


class EpisodeCell(RenderCell):
    """The environments of one cell, which begin what its work list says."""

    def __init__(self, envs: CellEnvs, episodes: EpisodeTracker, **how: Any) -> None:
        super().__init__(envs, episodes, **how)
        self._left: deque[tuple[int, int]] = deque()
        """Items that have not begun, with their seeds."""
        self._limit = 0
        self._running = np.full(self.slots, IDLE, np.int64)
        """The item of each slot."""
        self._steps = np.zeros(self.slots, np.int64)
        """Of the episode of each slot."""
        self._version = -1

    def begin_items(self, row: Row, start: int, seeds: dict[int, int], limit: int) -> None:
        """Begin as many items (number to seed) as there are slots; the others follow."""
        self._left, self._limit = deque(seeds.items()), limit
        self._running[:] = IDLE
        self._take(row)["item"][start:] = IDLE
        self._begin_next(range(self.slots))
        self._write(start)

    def step(self, t: int) -> None:
        """One step of every slot that is within an episode."""
        row = self._row
        assert row is not None, "step before begin"
        self._version = int(row["version"][t])
        active = np.flatnonzero(self._running != IDLE)
        self._episodes.acted(self._version)
        result = self._execute(row, t, active)
        self._observation = result.observation
        self._steps[active] += 1
        over = self._running != IDLE
        over &= (self._steps >= self._limit) & ~(result.terminated | result.truncated)
        result.truncated |= over
        row["reward"][t] = result.reward
        row["terminated"][t], row["truncated"][t] = result.terminated, result.truncated
        if len(result.finished):
            for name in self._names:
                row[f"final/{name}"][t, result.finished] = result.final_observation[name]  # type: ignore[index]
        for name in self._names:
            row[f"final/{name}"][t, over] = result.observation[name][over]
        ended = np.flatnonzero(result.terminated | result.truncated)
        for slot in ended.tolist():
            self._episodes.record(slot, self._version)
            self._running[slot] = IDLE
        if ended.size:
            self._begin_next(ended.tolist())
        self._write(t + 1)

    def drop(self) -> list[int]:
        """Let go of the episodes that are under way, and of those to come; the steps of each."""
        under_way = self._running != IDLE
        steps = [*self._steps[under_way].tolist(), *(0 for _ in self._left)]
        self._running[:] = IDLE
        self._left.clear()
        return steps

    def _execute(self, row: Row, t: int, active: np.ndarray) -> StepResult | ChunkResult:
        """Step the `active` slots, beginning nothing behind an end, and count what they earned."""
        action = row["action"][t] if self._squash is None else self._squash(row["action"][t])
        slots = None if active.size == self.slots else active
        if self._chunk == 1:
            result = self._envs.step(action, _retire, slots=slots)
            executed = (self._running != IDLE).astype(np.int64)
            self._episodes.sums.step(result.reward, result.success, executed_n=executed)
            return result
        chunk = self._envs.chunk_step(action, _retire, slots=slots)
        row["executed"][t] = chunk.executed
        self._episodes.sums.step(
            chunk.reward, chunk.success, executed_n=chunk.executed, within_n=chunk.success_within
        )
        return chunk

    def _begin_next(self, slots: Sequence[int]) -> None:
        """Begin the next items in `slots`, in order; where none is left, a slot stays idle."""
        given = [(slot, *self._left.popleft()) for slot in slots if self._left]
        if not given:
            return
        chosen = np.array([slot for slot, _, _ in given], np.intp)
        rows = self._envs.begin(chosen, [seed for _, _, seed in given])
        for name, values in rows.items():
            self._observation[name][chosen] = values
        for slot, number, seed in given:
            self._running[slot], self._steps[slot] = number, 0
            self._episodes.begin_item(slot, number, seed)

    def _write(self, t: int) -> None:
        """Observations and items of step t, into the row."""
        assert self._row is not None
        for name, view in self._obs_row:
            view[t] = self._observation[name]
        self._row["item"][t] = self._running


def check_one_task(tasks: set[str]) -> None:
    """BadInput where a group's episodes might be of different tasks."""
    if len(tasks) > 1:
        raise BadInput(
            "pipe.rollout(episodes=...)",
            "the slots run different tasks, and a group's episodes must be of one",
            got=", ".join(sorted(tasks)),
        )


def _retire(slot: int) -> None:
    """A slot's next episode is begun by its number, not here."""
