"""The wait account of a stage that has many cells under way at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rlinf_async.tracing.waits import StageClock, Wait


class CellsClock:
    """The rollout stage's clock over many cells: it waits only while no cell is at work."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._counts = {Wait.WORKING: 0, Wait.DEVICES: 0, Wait.INPUT: 0}
        self._now = contextlib.ExitStack()
        self._show()

    @contextlib.contextmanager
    def cell(self, state: Wait) -> Iterator[None]:
        """One cell is in `state` (working, or waiting for devices or other cells)."""
        self._counts[state] += 1
        self._show()
        try:
            yield
        finally:
            self._counts[state] -= 1
            self._show()

    def _show(self) -> None:
        self._now.close()
        if self._counts[Wait.WORKING]:
            return
        if self._counts[Wait.DEVICES]:
            waits, on = Wait.DEVICES, "train"
        elif self._counts[Wait.INPUT]:
            waits, on = Wait.INPUT, "other cells"
        else:
            waits, on = Wait.WEIGHTS, "publish"
        self._now.enter_context(self._clock.waiting(waits, on=on))
