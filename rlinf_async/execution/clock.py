"""Time as an argument: monotonic seconds, so that tests can move it by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a stage may know about time."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment; never runs backwards."""
        ...

    async def sleep_s(self, duration_s: float) -> None:
        """Return after `duration_s` seconds."""
        ...


class MonotonicClock:
    """The machine's clock (CLOCK_MONOTONIC)."""

    def now_s(self) -> float:
        """Seconds since the machine's start."""
        return time.monotonic()

    async def sleep_s(self, duration_s: float) -> None:
        """Return after `duration_s` seconds; other tasks run meanwhile."""
        await asyncio.sleep(duration_s)
