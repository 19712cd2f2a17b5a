"""One policy call for all cells that are ready, in place of one for each.

What comes together depends on timing, and so do the last bits of what the policy computes; that is
why it is an option. The first cell that is ready waits at most so long for others, and a call has
at most so many slots; while a call is under way the next one fills up by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rlinf_async.models.acting import act_together
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.segments import OpenSegment

Compute = Callable[..., Awaitable[Any]]
"""Runs a function with its arguments on the work thread."""


@dataclass(slots=True)
class _Waiting:
    segment: OpenSegment
    t: int
    answer: asyncio.Future[bool]
    """True: its step has been taken. False: it is its turn to make the next call."""


class MergedCalls:
    """Collects what is to be acted for, on the host's loop, and acts for it on the work thread.

    Whoever finds no call under way makes one; when it ends, the cell that has waited longest makes
    the next.
    """

    def __init__(
        self, compute: Compute, recorder: Recorder, *, most_slots: int | None, wait_s: float
    ) -> None:
        """`most_slots` of one call, None: no limit; `wait_s` of the first cell for others."""
        self._compute, self._recorder = compute, recorder
        self._most, self._wait_s = most_slots, wait_s
        self._waiting: list[_Waiting] = []
        self._full = asyncio.Event()
        self._calling = False

    async def act(self, segment: OpenSegment, t: int) -> None:
        """As `segment.act(t)`, in a call that others may share."""
        one = _Waiting(segment, t, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._is_full():
            self._full.set()
        if self._calling and await one.answer:
            return
        self._calling = True
        try:
            await self._wait_for_others()
            await self._call(self._take())
        finally:
            self._calling = bool(self._waiting)
            if self._waiting and not self._waiting[0].answer.done():
                self._waiting[0].answer.set_result(False)

    async def _wait_for_others(self) -> None:
        self._full.clear()
        if not self._wait_s or self._is_full():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._full.wait()

    async def _call(self, batch: list[_Waiting]) -> None:
        try:
            await self._compute(self._act, batch)
        except BaseException:
            # The first of them raises it; the others end with it.
            for one in batch:
                one.answer.cancel()
            raise
        for one in batch:
            if not one.answer.done():
                one.answer.set_result(True)

    def _take(self) -> list[_Waiting]:
        """The cells of the next call: those that have waited longest; at least one."""
        count, slots = 1, self._waiting[0].segment.slots
        for one in self._waiting[1:]:
            slots += one.segment.slots
            if self._most is not None and slots > self._most:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _is_full(self) -> bool:
        waiting = sum(one.segment.slots for one in self._waiting)
        return self._most is not None and waiting >= self._most

    def _act(self, batch: list[_Waiting]) -> None:
        """One call for the cells of each version, on the work thread."""
        calls = [(one, one.segment.call(one.t)) for one in batch]
        for version in sorted({one.segment.version for one, _ in calls}):
            same = [(one, call) for one, call in calls if one.segment.version == version]
            slots = sum(one.segment.slots for one, _ in same)
            with self._recorder.span("rollout.act", items=slots):
                actions = act_together([call for _, call in same])
                for (one, _), action in zip(same, actions, strict=True):
                    one.segment.put(one.t, action)
