"""When phases ran, and for how long at the same time: what the scheduler learns from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rlinf_async.scheduling.live_costs import IterationTimes


class PhaseTimes:
    """Seconds of one iteration in which collecting, training, or both were under way."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began_s = self._last_s = now()
        self._open = {"collect": 0, "train": 0}
        self._spent = {"collect": 0.0, "train": 0.0, "both": 0.0}

    @contextlib.contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """`phase` (`collect` or `train`) is under way inside the block; blocks may overlap."""
        self._settle()
        self._open[phase] += 1
        try:
            yield
        finally:
            self._settle()
            self._open[phase] -= 1

    def take(self) -> IterationTimes:
        """What was spent since the last `take`; blocks that are open go on."""
        self._settle()
        now_s, spent = self._last_s, self._spent
        times = IterationTimes(
            seconds=now_s - self._began_s,
            collect_s=spent["collect"],
            train_s=spent["train"],
            both_s=spent["both"],
        )
        self._began_s = now_s
        self._spent = dict.fromkeys(spent, 0.0)
        return times

    def _settle(self) -> None:
        now_s = self._now()
        passed_s, self._last_s = now_s - self._last_s, now_s
        running = [phase for phase, count in self._open.items() if count]
        for phase in running:
            self._spent[phase] += passed_s
        if len(running) == 2:
            self._spent["both"] += passed_s
