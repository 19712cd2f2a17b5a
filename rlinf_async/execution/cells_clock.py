"""The wait account of a stage that has many cells under way at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rlinf_async.tracing.waits import StageClock, Wait


class CellsClock:
    """The rollout stage's clock over many cells: it waits only while no cell is at work."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._counts = {Wait.WORKING: 0, Wait.DEVICES: 0}
        self._now = contextlib.ExitStack()
        self._show()

    @contextlib.contextmanager
    def cell(self, state: Wait) -> Iterator[None]:
        """One cell is in `state` (working, or waiting for devices) inside the block."""
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
        waits = Wait.DEVICES if self._counts[Wait.DEVICES] else Wait.WEIGHTS
        on = "train" if waits is Wait.DEVICES else "publish"
        self._now.enter_context(self._clock.waiting(waits, on=on))
