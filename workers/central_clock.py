"""The wait account of a policy that acts for cells whose environments are in other hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rlinf_async.tracing.waits import StageClock, Wait


class CentralClock:
    """Works while it computes for any cell; else waits for render hosts, if a segment is open."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._open = self._computing = 0
        self._now = contextlib.ExitStack()
        self._shown: Wait | None = None

    @contextlib.contextmanager
    def segment(self) -> Iterator[None]:
        """A segment is open inside the block."""
        self._open += 1
        self._show()
        try:
            yield
        finally:
            self._open -= 1
            self._show()

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The policy computes for one cell inside the block."""
        self._computing += 1
        self._show()
        try:
            yield
        finally:
            self._computing -= 1
            self._show()

    def _show(self) -> None:
        state = Wait.WORKING if self._computing else Wait.INPUT if self._open else None
        if state is self._shown:
            return
        self._now.close()
        self._shown = state
        if state is not None:
            on = "render" if state is Wait.INPUT else ""
            self._now.enter_context(self._clock.waiting(state, on=on))
