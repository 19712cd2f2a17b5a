"""The rollout worker: acts for cells and assembles their segments in rows.

Beside the environments it calls the render worker of its own host by reference; central, it talks
to render hosts over direct links while both sides read and write the same row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_async.execution.records import cut_to_slots
from rlinf_async.execution.spaces import Spaces
from rlinf_async.execution.worker import Worker, WorkerContext
from rlinf_async.models.acting import make_actor
from rlinf_async.workers.central_clock import CentralClock
from rlinf_async.workers.merged_calls import MergedCalls
from rlinf_async.workers.segments import LiveWeights, OpenSegment

ACTION_STREAM = 1
"""Seed word that keeps action noise apart from every other use of the run's seed."""


class RolloutWorker(Worker):
    """Collects segments, one cell over one horizon at a time.

    Waits for:    a ticket (input); in central placement also for each render step (input).
    Unblocked by: the ledger admitting a batch; the render hosts.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        policy: Callable[[], Any],
        spaces: dict[str, Any],
        normalize: bool,
        horizon: int,
        run_seed: int,
        cells: dict[str, int],
        render_hosts: dict[str, str],
        free_lag: bool,
        deadline_s: float,
        merged: dict[str, Any] | None = None,
    ) -> None:
        """`cells`: slots of each cell; `render_hosts`: host of each cell's environments.

        `merged`: arguments of `MergedCalls`, if a central policy may act for several cells at once.
        """
        super().__init__(context)
        self._horizon, self._run_seed, self._free_lag = horizon, run_seed, free_lag
        self._deadline_s = deadline_s
        self._render_hosts = {int(cell): host for cell, host in render_hosts.items()}
        self._slots = {int(cell): slots for cell, slots in cells.items()}
        parsed = Spaces.from_json(spaces)
        self._names = [spec.name for spec in parsed.observation]
        self._actors = {
            cell: make_actor(policy(), parsed, slots, normalize=normalize)
            for cell, slots in self._slots.items()
        }
        self._weights = LiveWeights()
        self._merged = (
            None if merged is None else MergedCalls(self._compute, context.recorder, **merged)
        )
        self._clock = CentralClock(context.recorder.stage(f"rollout@{context.host}"))

    async def adopt(self, version: int, row: int) -> int:
        """A new version is live; with free lag, acknowledged once every open segment uses it.

        Runs on the loop, so that it is heard in the middle of a segment.
        """
        self._weights.learn(version, row)
        if self._free_lag:
            await self._weights.all_moved_to(version)
        return version

    def collect(self, cell: int, batch: int, version: int, row: int) -> dict[str, Any]:
        """One segment with the environments in this host."""
        render: Any = self.context.sibling("render")
        render.begin(cell, batch, row)
        segment = self._open(cell, batch, version, row)
        rendered_ns = 0
        try:
            for t in range(self._horizon):
                segment.act(t)
                began_ns = time.perf_counter_ns()
                render.step(cell, t)
                rendered_ns += time.perf_counter_ns() - began_ns
            segment.finish(self._horizon)
        finally:
            self._weights.release(segment)
        self.context.lent("rollout", "render", rendered_ns)
        return segment.summary(render.end(cell))

    async def collect_central(
        self, cell: int, batch: int, version: int, row: int
    ) -> dict[str, Any]:
        """One segment with the environments in another host; segments of other cells interleave."""
        with self._clock.segment():
            await self._render("begin", cell=cell, batch=batch, row=row)
            segment: OpenSegment = await self._compute(self._open, cell, batch, version, row)
            try:
                for t in range(self._horizon):
                    if self._merged is None:
                        await self._compute(segment.act, t)
                    else:
                        await self._merged.act(segment, t)
                    await self._render("step", cell=cell, t=t)
                await self._compute(segment.finish, self._horizon)
            finally:
                self._weights.release(segment)
            return segment.summary(await self._render("end", cell=cell))

    async def _compute(self, work: Callable[..., Any], *arguments: Any) -> Any:
        with self._clock.computing():
            return await self.context.compute(work, *arguments)

    async def _render(self, method: str, **arguments: Any) -> Any:
        host = self._render_hosts[arguments["cell"]]
        return await self.context.call(
            host, "render", method, arguments, deadline_s=self._deadline_s
        )

    def _open(self, cell: int, batch: int, version: int, row: int) -> OpenSegment:
        views = cut_to_slots(self.context.rows("segments", row), self._slots[cell])
        words = (self._run_seed, ACTION_STREAM, cell, batch)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
        segment = OpenSegment(
            self.context,
            self._actors[cell],
            views,
            self._names,
            self._weights,
            free_lag=self._free_lag,
        )
        recorder = self.context.recorder
        with recorder.span("rollout.open", items=self._slots[cell]):
            recorder.flow("segment", cell, batch)
            segment.begin(rng, self._horizon, version)
        return segment
