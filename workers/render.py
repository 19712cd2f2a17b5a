"""The render worker: steps the environments of its cells and writes what happened into rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlinf_async.envs.contract import CellEnvs, ChunkResult, StepResult
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.request import EnvRequest
from rlinf_async.envs.squash import SquashedActions
from rlinf_async.execution.records import cut_to_slots
from rlinf_async.execution.worker import Worker, WorkerContext
from rlinf_async.workers.draw import RemoteDrawer
from rlinf_async.workers.episodes import EpisodeTracker

Row = Mapping[str, np.ndarray]


class RenderWorker(Worker):
    """Owns the environments of some cells.

    Waits for:    actions of a cell (input).
    Unblocked by: the rollout worker, in this host or in the policy's.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        env: Any,
        run_seed: int,
        cells: dict[str, tuple[int, int]],
        squash: bool = False,
        drawing: dict[str, Any] | None = None,
    ) -> None:
        """`cells` maps a cell's number to its first slot and its slot count.

        `squash`: rows hold continuous actions before a tanh; see `envs.squash`. `drawing`: where
        images are drawn if not here; see `execution.drawing`.
        """
        super().__init__(context)
        self._cells: dict[int, RenderCell] = {}
        for number, (first_slot, slots) in cells.items():
            cell = int(number)
            drawer = None if drawing is None else RemoteDrawer(context, cell, **drawing)
            envs = make_cell(env, slots, first_slot=first_slot, drawer=drawer)
            chunk = EnvRequest.from_json(env).chunk
            episodes = EpisodeTracker(run_seed, first_slot, slots, tasks=envs.tasks)
            self._cells[cell] = self._cell(envs, episodes, chunk=chunk, squash=squash)

    def begin(self, cell: int, batch: int, row: int) -> None:
        """Start a segment: write the observation that the first action will see."""
        recorder = self.context.recorder
        with recorder.span("render.begin", items=self._cells[cell].slots):
            recorder.flow("segment", cell, batch)
            self._cells[cell].begin(self.context.rows("segments", row))

    def step(self, cell: int, t: int) -> None:
        """Execute `action[t]` of the row and write the rest of entry t and observation t + 1."""
        with self.context.recorder.span("render.step", items=self._cells[cell].slots):
            self._cells[cell].step(t)

    def end(self, cell: int) -> list[dict[str, Any]]:
        """Close the segment; the episodes that ended in it."""
        return self._cells[cell].end()

    def close(self) -> None:
        """Close every environment."""
        for cell in self._cells.values():
            cell.close()

    def _cell(self, envs: CellEnvs, episodes: EpisodeTracker, **how: Any) -> RenderCell:
        return RenderCell(envs, episodes, **how)


class RenderCell:
    """The environments of one cell. Axes: T horizon, n slots."""

    def __init__(
        self, envs: CellEnvs, episodes: EpisodeTracker, *, chunk: int, squash: bool
    ) -> None:
        self.slots = envs.slots
        self._envs, self._episodes, self._chunk = envs, episodes, chunk
        self._squash = SquashedActions(envs.spaces.action) if squash else None
        self._names = [spec.name for spec in self._envs.spaces.observation]
        self._observation = self._envs.reset(self._episodes.first_seeds())
        self._row: Row | None = None
        self._obs_row: list[tuple[str, np.ndarray]] = []

    def begin(self, row: Row) -> None:
        """Write the current observation as `obs/*[0]` and remember the row."""
        self._take(row)
        for name, view in self._obs_row:
            view[0] = self._observation[name]

    def step(self, t: int) -> None:
        """One simulator step of every slot."""
        row = self._row
        assert row is not None, "step before begin"
        version = int(row["version"][t])
        self._episodes.acted(version)
        action = row["action"][t] if self._squash is None else self._squash(row["action"][t])
        result: StepResult | ChunkResult
        if self._chunk == 1:
            result = self._envs.step(action, self._episodes.next_seed)
            self._episodes.step(result.reward, result.success)
        else:
            result = self._envs.chunk_step(action, self._episodes.next_seed)
            row["executed"][t] = result.executed
            self._episodes.sums.step(
                result.reward,
                result.success,
                executed_n=result.executed,
                within_n=result.success_within,
            )
        self._observation = result.observation
        for name, view in self._obs_row:
            view[t + 1] = result.observation[name]
        row["reward"][t] = result.reward
        row["terminated"][t] = result.terminated
        row["truncated"][t] = result.truncated
        if len(result.finished):
            self._finish(row, t, version, result)

    def end(self) -> list[dict[str, Any]]:
        """Forget the row; the episodes that ended since the last call."""
        self._row = None
        return self._episodes.take_finished()

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _take(self, row: Row) -> Row:
        """Remember the row, cut to the slots of this cell."""
        self._row = cut_to_slots(row, self.slots)
        self._obs_row = [(name, self._row[f"obs/{name}"]) for name in self._names]
        return self._row

    def _finish(self, row: Row, t: int, version: int, result: Any) -> None:
        for name in self._names:
            row[f"final/{name}"][t, result.finished] = result.final_observation[name]
        for slot in result.finished.tolist():
            self._episodes.finish(slot, version)
