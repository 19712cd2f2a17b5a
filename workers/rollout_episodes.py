"""The rollout worker of `episodes` mode: acts for a cell until its work list is done.

A list is collected behind the one before it in the same row, when groups of it had to be replaced.
Policy calls have the cell's shape throughout; what they give for idle slots is left unread.
"""

from __future__ import annotations

import math
import time
from typing import Any, cast

import numpy as np

from rlinf_async.execution.records import cut_to_slots
from rlinf_async.models.noise import SlotNoise
from rlinf_async.workers.rollout import RolloutWorker
from rlinf_async.workers.segments import OpenSegment

ITEM_STREAM = 4
"""Seed word that keeps the action noise of work items apart from every other use of a seed."""


class EpisodeRolloutWorker(RolloutWorker):
    """Collects work lists of whole episodes; see `scheduling.work_list`.

    Waits for, unblocked by: as `RolloutWorker`.
    """

    def collect_items(
        self, cell: int, batch: int, version: int, row: int, start: int, **work: Any
    ) -> dict[str, Any]:
        """A list with the environments in this host; `work` as in `_begin_arguments`."""
        render: Any = self.context.sibling("render")
        render.begin_items(cell, batch, row, start, **_begin_arguments(work))
        episodes = self._open_items(cell, batch, version, row, start, work)
        rendered_ns = 0
        try:
            while episodes.more():
                t = episodes.act_next()
                began_ns = time.perf_counter_ns()
                render.step(cell, t)
                rendered_ns += time.perf_counter_ns() - began_ns
            episodes.close()
        finally:
            self._weights.release(episodes)
        self.context.lent("rollout", "render", rendered_ns)
        return episodes.told(render.end_items(cell))

    async def collect_items_central(
        self, cell: int, batch: int, version: int, row: int, start: int, **work: Any
    ) -> dict[str, Any]:
        """A list with the environments in another host; lists of other cells interleave."""
        place = {"cell": cell, "batch": batch, "row": row, "start": start}
        with self._clock.segment():
            await self._render("begin_items", **place, **_begin_arguments(work))
            episodes: OpenEpisodes = await self._compute(
                self._open_items, cell, batch, version, row, start, work
            )
            try:
                while episodes.more():
                    t = await self._compute(episodes.act_next)
                    await self._render("step", cell=cell, t=t)
                await self._compute(episodes.close)
            finally:
                self._weights.release(episodes)
            return episodes.told(await self._render("end_items", cell=cell))

    def _open_items(
        self, cell: int, batch: int, version: int, row: int, start: int, work: dict[str, Any]
    ) -> OpenEpisodes:
        episodes = OpenEpisodes(
            self.context,
            self._actors[cell],
            cut_to_slots(self.context.rows("segments", row), self._slots[cell]),
            self._names,
            self._weights,
            free_lag=self._free_lag,
        )
        share, count = work["keep_share"], len(work["items"])
        with self.context.recorder.span("rollout.open", items=count):
            self.context.recorder.flow("segment", cell, batch)
            episodes.begin_items(
                start,
                self._horizon,
                version,
                enough=count if share is None else math.ceil(share * count),
                seed_words=(self._run_seed, ITEM_STREAM, batch),
            )
        return episodes


class OpenEpisodes(OpenSegment):
    """One cell's work list in the making, from step `start` of its row on."""

    def begin_items(
        self,
        start: int,
        horizon: int,
        version: int,
        *,
        enough: int,
        seed_words: tuple[int, int, int],
    ) -> None:
        """As `begin`, leaving what lies before `start` as it is.

        Args:
            enough: episodes that have to end.
            seed_words: with an item's number behind them they seed its action noise.
        """
        self._enough, self._words = enough, seed_words
        self._start = self._t = self._since = start
        self._ended = 0
        self._items = np.full(self.slots, -1, np.int64)
        self._noise = SlotNoise(self.slots)
        self._row["final_value"][start:] = 0.0
        self._row["version"][start:] = version
        self._actor.begin(cast("np.random.Generator", self._noise), horizon)
        self._load(self._weights.newest if self._free_lag else version)

    def more(self) -> bool:
        """Count the ends of the step that was made last; whether another one must be made."""
        if self._t > self._start:
            before = self._t - 1
            ended = self._row["terminated"][before] | self._row["truncated"][before]
            self._ended += int(np.count_nonzero(ended))
        return self._ended < self._enough

    def act_next(self) -> int:
        """Choose the actions of the next step, which is returned."""
        t = self._t
        item_n = self._row["item"][t]
        for slot in np.flatnonzero((item_n != self._items) & (item_n >= 0)).tolist():
            words = np.random.SeedSequence((*self._words, int(item_n[slot])))
            self._noise.begin(slot, np.random.Generator(np.random.PCG64(words)))
        self._items[:] = item_n
        self.act(t)
        self._t = t + 1
        return t

    def close(self) -> None:
        """Write what is left of log-probs and values."""
        self.finish(self._t)

    def told(self, rendered: dict[str, Any]) -> dict[str, Any]:
        """What the controller hears: the episodes that ended, and those that were cut."""
        at = slice(self._start, self._t)
        made = self._row["item"][at] >= 0
        version_T = self._row["version"][self._start : max(self._t, self._start + 1)]
        executed = self._row.get("executed")
        return {
            **rendered,
            "stop": self._t,
            "env_steps": int(made.sum() if executed is None else executed[at][made].sum()),
            "oldest_version": int(version_T.min()),
            "newest_version": int(version_T.max()),
        }


def _begin_arguments(work: dict[str, Any]) -> dict[str, Any]:
    """What the render worker must know of a list: its items, their groups' size, and the limit."""
    return {name: work[name] for name in ("items", "size", "limit")}
