"""How late the controller's loop is, always measured; what made it late is named."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from rlinf_async.execution.logs import get_logger
from rlinf_async.tracing.recorder import Recorder

log = get_logger()

PERIOD_S = 0.05
LIMIT_S = 0.05
"""One callback may compute for so long (thread CPU time)."""
WINDOW = 100
"""Periods that the shown worst value covers."""


class LoopLag:
    """A probe that asks to be woken at fixed times and notes how late it was."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._late_s: deque[float] = deque(maxlen=WINDOW)

    def worst_s(self) -> float:
        """The longest delay of the last seconds."""
        return max(self._late_s, default=0.0)

    async def watch(self) -> None:
        """Endless."""
        while True:
            began_s, computed_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(PERIOD_S)
            late_s = time.monotonic() - began_s - PERIOD_S
            computed_s = time.thread_time() - computed_s
            self._late_s.append(late_s)
            self.recorder.counter("loop lag ms", late_s * 1000)
            # Both: a busy machine makes a loop late, only computing makes it late by itself.
            if min(late_s, computed_s) > LIMIT_S:
                self._name_culprit(late_s, computed_s)

    def _name_culprit(self, late_s: float, computed_s: float) -> None:
        records = [r for r in self.recorder.records(newest=64) if r.kind == "span"]
        longest = max(records[-20:], key=lambda r: r.end_ns - r.begin_ns, default=None)
        log.warning(
            "loop_blocked",
            late_ms=round(late_s * 1000, 1),
            computed_ms=round(computed_s * 1000, 1),
            during=longest.name if longest is not None else "no recorded span",
        )
