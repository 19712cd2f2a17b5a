"""Where a stage's wall time goes: every nanosecond belongs to exactly one state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from threading import Lock
from types import TracebackType
from typing import Any


class Wait(StrEnum):
    """What a stage is doing, or what it cannot go on without."""

    WORKING = "working"
    INPUT = "input"
    """Nothing to work on yet."""
    SPACE = "space"
    """The next stream, pool or ring is full."""
    WEIGHTS = "weights"
    """The policy version that the next work needs is not there yet."""
    DEVICES = "devices"
    """Another phase holds the devices."""
    PAUSED = "paused"
    """Held by the user or by a plan."""


RECENT_NS = 60 * 10**9
_MARK_NS = 5 * 10**9
"""Accounts tell what was spent before the last minute, to the mark of which it is known."""

OnWait = Callable[[str, int, int], None]
"""Told each finished wait: `state:on`, begin and end in nanoseconds."""


class StageClock:
    """Splits the wall time of one stage into `Wait` states; safe to read from other threads.

    Meant for one coroutine or thread. Where tasks of a stage overlap in their waits, the time goes
    to the wait that began last and is still open, so that the sum is exact in any case.
    """

    def __init__(
        self,
        name: str,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        *,
        on_wait: OnWait | None = None,
    ) -> None:
        self.name = name
        self.clock_ns = clock_ns
        self._on_wait = on_wait
        self._lock = Lock()
        self._began_ns = self._since_ns = clock_ns()
        self._spent_ns: dict[tuple[Wait, str], int] = {}
        self._open: list[_Visit] = []
        self._now_in: tuple[Wait, str] = (Wait.WORKING, "")
        self._marks: deque[dict[str, Any]] = deque()

    @property
    def state(self) -> Wait:
        """The state that the stage is in."""
        return self._now_in[0]

    @property
    def waiting_on(self) -> str:
        """What the present wait names; empty while working."""
        return self._now_in[1]

    def waiting(self, state: Wait | str, on: str = "") -> _Visit:
        """A context manager: in `state` inside it, back in the previous state after it."""
        return _Visit(self, Wait(state), on)

    def working(self) -> _Visit:
        """A context manager for work inside a wait (a command loop that waits by default)."""
        return _Visit(self, Wait.WORKING, "")

    def move(self, spent_ns: int, source: tuple[Wait, str], target: tuple[Wait, str]) -> None:
        """Book `spent_ns` of what was counted under `source` under `target` instead.

        For time that was measured by other means while the clock stayed in one state: two passes
        through a clock around each of many short calls would cost more than they tell.
        """
        with self._lock:
            self._spent_ns[source] = self._spent_ns.get(source, 0) - spent_ns
            self._spent_ns[target] = self._spent_ns.get(target, 0) + spent_ns

    def totals_ns(self) -> dict[str, int]:
        """Nanoseconds in each of the six states; they add up to the wall time since the start."""
        totals = {str(state): 0 for state in Wait}
        for (state, _), spent_ns in self._read().items():
            totals[state] += spent_ns
        return totals

    def totals_s(self) -> dict[str, float]:
        """Seconds in each of the six states; they add up to the wall time since the start."""
        return {state: spent_ns / 1e9 for state, spent_ns in self.totals_ns().items()}

    def totals_on_s(self) -> dict[tuple[str, str], float]:
        """Seconds by state and by what was waited for; only pairs that occurred."""
        return {(str(s), on): spent_ns / 1e9 for (s, on), spent_ns in self._read().items()}

    def account(self) -> dict[str, Any]:
        """Everything at one moment, in plain values; `spent` adds up to `now_ns - began_ns`.

        `earlier` is the same of about a minute ago, None before: what was spent since is recent.
        """
        with self._lock:
            now_ns, (state, on), since_ns = self.clock_ns(), self._now_in, self._since_ns
            spent = dict(self._spent_ns)
        spent[state, on] = spent.get((state, on), 0) + now_ns - since_ns
        listed = [[str(s), name, spent_ns] for (s, name), spent_ns in spent.items()]
        return {
            "state": str(state),
            "on": on,
            "since_ns": since_ns,
            "began_ns": self._began_ns,
            "now_ns": now_ns,
            "spent": listed,
            "earlier": self._earlier(now_ns, listed),
        }

    def _earlier(self, now_ns: int, spent: list[list[Any]]) -> dict[str, Any] | None:
        """The account of a minute ago, as near as marks were made; makes one of this moment."""
        if not self._marks or now_ns - self._marks[-1]["now_ns"] >= _MARK_NS:
            self._marks.append({"now_ns": now_ns, "spent": spent})
        while len(self._marks) > 1 and now_ns - self._marks[1]["now_ns"] >= RECENT_NS:
            self._marks.popleft()
        return self._marks[0] if self._marks[0]["now_ns"] < now_ns else None

    def shares(self) -> dict[str, float]:
        """Each state's part of the wall time, in [0, 1]; all 0 before any time has passed."""
        totals = self.totals_ns()
        wall_ns = sum(totals.values()) or 1
        return {state: spent_ns / wall_ns for state, spent_ns in totals.items()}

    def _read(self) -> dict[tuple[Wait, str], int]:
        with self._lock:
            spent = dict(self._spent_ns)
            open_ns = self.clock_ns() - self._since_ns
            spent[self._now_in] = spent.get(self._now_in, 0) + open_ns
        return spent

    def _enter(self, visit: _Visit) -> int:
        with self._lock:
            self._open.append(visit)
            return self._settle()

    def _leave(self, visit: _Visit) -> None:
        with self._lock:
            self._open.remove(visit)
            now_ns = self._settle()
        if self._on_wait is not None and visit.key[0] is not Wait.WORKING:
            self._on_wait(":".join(filter(None, visit.key)), visit.began_ns, now_ns)

    def _settle(self) -> int:
        """Book the time since the last change and take up the state of the last open visit."""
        now_ns = self.clock_ns()
        self._spent_ns[self._now_in] = self._spent_ns.get(self._now_in, 0) + now_ns - self._since_ns
        self._since_ns = now_ns
        self._now_in = self._open[-1].key if self._open else (Wait.WORKING, "")
        return now_ns


class _Visit:
    """One stay in a state; compared by identity, so equal waits of two tasks stay apart."""

    __slots__ = ("_clock", "began_ns", "key")

    def __init__(self, clock: StageClock, state: Wait, on: str) -> None:
        self._clock, self.key, self.began_ns = clock, (state, on), 0

    def __enter__(self) -> None:
        self.began_ns = self._clock._enter(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clock._leave(self)
