"""Spans, instants, counters and waits of one process in a preallocated ring.

Writing one record is a clock reading and one `struct.pack_into`, about a microsecond in all;
nothing is sent. The ring keeps the newest records and counts those that it overwrote. Times are
`time.perf_counter_ns`, on Linux CLOCK_MONOTONIC: comparable between the processes of a machine.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Literal, NamedTuple

from rlinf_async.tracing.waits import StageClock

RECORD = struct.Struct("<QqqdIHH")
"""number + 1 (0: never written), begin_ns, end_ns, value, name id, thread id, kind."""

_RECORD_BYTES = RECORD.size

KINDS: tuple[Literal["span", "instant", "counter", "wait"], ...] = (
    "span",
    "instant",
    "counter",
    "wait",
)
_SPAN, _INSTANT, _COUNTER, _WAIT = range(4)

NAME_LIMIT = 4096
"""Names are meant to be constants; later ones than these are recorded as `(other)`."""


class Record(NamedTuple):
    """One entry of the ring."""

    number: int
    """Counts all records of the process from 0; spans are numbered when they end."""
    kind: Literal["span", "instant", "counter", "wait"]
    name: str
    begin_ns: int
    end_ns: int
    """Equal to `begin_ns` for instants and counters."""
    value: float
    """A span's items, an instant's or a counter's value, 0 for waits."""
    thread: str


class Recorder:
    """The ring of one process. Any thread may write; `records()` may be called from any thread."""

    def __init__(
        self,
        process: str,
        capacity: int = 65536,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"recorder {process!r}: capacity must be >= 1, got {capacity}")
        self.process = process
        # A power of two, so that a record's place is a mask and not a division.
        self.capacity = 1 << (capacity - 1).bit_length()
        self._mask = self.capacity - 1
        self._ring = bytearray(self.capacity * RECORD.size)
        # `next` of a C iterator is atomic under the interpreter lock; `x += 1` is not.
        self._next = itertools.count(1).__next__
        self._clock_ns = clock_ns
        self._names = _Interned()
        self._threads = _ThreadIds()
        self._stages: dict[str, StageClock] = {}
        self._lock = threading.Lock()

    def span(self, name: str, items: float = 0) -> _Span:
        """A context manager that records how long its block took and how many items it handled.

        The record is written when the block ends, by an exception too.
        """
        return _Span(self, name, items)

    def instant(self, name: str, value: float = 0) -> None:
        """Record that something happened now."""
        now_ns = self._clock_ns()
        self._write(_INSTANT, name, now_ns, now_ns, value)

    def counter(self, name: str, value: float) -> None:
        """Record the present value of a quantity."""
        now_ns = self._clock_ns()
        self._write(_COUNTER, name, now_ns, now_ns, value)

    def stage(self, name: str) -> StageClock:
        """The clock of stage `name`, made at the first call; its waits are recorded too."""
        with self._lock:
            if name not in self._stages:
                self._stages[name] = StageClock(
                    name, self._clock_ns, on_wait=_WaitWriter(self, name)
                )
            return self._stages[name]

    def stage_totals(self) -> dict[str, dict[str, float]]:
        """Seconds in each `Wait` state, by stage."""
        with self._lock:
            clocks = list(self._stages.values())
        return {clock.name: clock.totals_s() for clock in clocks}

    def records(self) -> list[Record]:
        """A snapshot of what the ring holds, oldest first."""
        names, threads = self._names.by_number(), self._threads.by_number()
        entries = [entry for entry in RECORD.iter_unpack(bytes(self._ring)) if entry[0]]
        entries.sort()
        return [
            Record(
                number=number - 1,
                kind=KINDS[kind],
                name=names[name],
                begin_ns=begin_ns,
                end_ns=end_ns,
                value=value,
                thread=threads[thread],
            )
            for number, begin_ns, end_ns, value, name, thread, kind in entries
            if name < len(names) and thread < len(threads)  # interned since the two lines above
        ]

    @property
    def written(self) -> int:
        """How many records were ever written."""
        numbers: list[int] = [entry[0] for entry in RECORD.iter_unpack(bytes(self._ring))]
        return max(numbers)

    @property
    def overwritten(self) -> int:
        """How many records the ring no longer holds."""
        return max(0, self.written - self.capacity)

    def _write(self, kind: int, name: str, begin_ns: int, end_ns: int, value: float) -> None:
        number = self._next()
        RECORD.pack_into(
            self._ring,
            ((number - 1) & self._mask) * _RECORD_BYTES,
            number,
            begin_ns,
            end_ns,
            value,
            self._names[name],
            self._threads[get_ident()],
            kind,
        )


class _Span:
    __slots__ = ("_begin_ns", "_items", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str, items: float) -> None:
        self._recorder, self._name, self._items = recorder, name, items

    def __enter__(self) -> None:
        self._begin_ns = self._recorder._clock_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recorder = self._recorder
        recorder._write(_SPAN, self._name, self._begin_ns, recorder._clock_ns(), self._items)


class _WaitWriter:
    def __init__(self, recorder: Recorder, stage: str) -> None:
        self._recorder, self._stage = recorder, stage

    def __call__(self, wait: str, begin_ns: int, end_ns: int) -> None:
        self._recorder._write(_WAIT, f"{self._stage}:{wait}", begin_ns, end_ns, 0)


class _Interned(dict[str, int]):
    """Names to small numbers; a known name costs one dictionary look-up."""

    def __init__(self) -> None:
        super().__init__({"(other)": 0})
        self._lock = threading.Lock()

    def __missing__(self, name: str) -> int:
        with self._lock:
            if name in self:  # another thread was first
                return self[name]
            if len(self) >= NAME_LIMIT:
                return 0
            self[name] = number = len(self)
            return number

    def by_number(self) -> list[str]:
        return list(self)


class _ThreadIds(dict[int, int]):
    """Thread identifiers to small numbers, with each thread's name at its first record."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._lock = threading.Lock()

    def __missing__(self, ident: int) -> int:
        with self._lock:
            # Only the thread itself looks its identifier up: nobody can have added it meanwhile.
            self._names.append(threading.current_thread().name)
            self[ident] = number = min(len(self._names), 65536) - 1
            return number

    def by_number(self) -> list[str]:
        return list(self._names)


_current = Recorder("(not installed)", 1024)


def install(process: str, capacity: int = 65536) -> Recorder:
    """Make a recorder named `process` the one of this process and return it."""
    global _current
    _current = Recorder(process, capacity)
    return _current


def current() -> Recorder:
    """The recorder of this process; a small one before `install`."""
    return _current
