"""Spans, instants, counters and waits of one process in a preallocated ring.

Writing one record is a clock reading and one `struct.pack_into`, about a microsecond in all;
nothing is sent. The ring keeps the newest records and counts those that it overwrote; others may
read it meanwhile (`tracing.ring`). Times are `time.perf_counter_ns`, on Linux CLOCK_MONOTONIC:
comparable between the processes of a machine.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, NamedTuple

from rlinf_async.tracing.ring import (
    RECORD,
    RING_AT,
    THREAD_LIMIT,
    Block,
    Memory,
    block_bytes,
    capacity_of,
    lap_shift,
)
from rlinf_async.tracing.waits import StageClock

Kind = Literal["span", "instant", "counter", "wait", "flow"]
KINDS: tuple[Kind, ...] = ("span", "instant", "counter", "wait", "flow")
_SPAN, _INSTANT, _COUNTER, _WAIT, _FLOW = range(5)

NAME_LIMIT = 4096
"""Names are meant to be constants; later ones than these are recorded as `(other)`."""


CELLS = 1 << 20
"""More than the cells of any run: a segment's number is batch times this plus cell."""


def segment_number(cell: int, batch: int) -> int:
    """The number by which a segment's records of all processes are found."""
    return batch * CELLS + cell


class Record(NamedTuple):
    """One entry of the ring."""

    number: int
    """Counts all records of the process from 0; spans are numbered when they end."""
    kind: Kind
    name: str
    begin_ns: int
    end_ns: int
    """Equal to `begin_ns` for instants and counters."""
    value: float
    """A span's items, an instant's or a counter's value, a flow's segment, 0 for waits."""
    thread: str


class Recorder:
    """The ring of one process. Any thread may write; `records()` may be called from any thread."""

    def __init__(
        self,
        process: str,
        capacity: int = 65536,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        memory: Memory | None = None,
    ) -> None:
        """`memory`: a block for `capacity` records, a power of two; None: private memory."""
        if capacity < 1:
            raise ValueError(f"recorder {process!r}: capacity must be >= 1, got {capacity}")
        self.process = process
        # A power of two, so that a record's place is a mask and not a division.
        self.capacity = 1 << (capacity - 1).bit_length()
        self._memory = bytearray(block_bytes(self.capacity)) if memory is None else memory
        self._clock_ns = clock_ns
        self._block = Block(self._memory, process, self.capacity, time.perf_counter_ns())
        self._names = _Interned(self._block)
        self._threads = _ThreadIds(self._block)
        self._write = _writer(self._memory, self.capacity, self._names, self._threads)
        self._stages: dict[str, StageClock] = {}
        self._lock = threading.Lock()

    def span(self, name: str, items: float = 0) -> _Span:
        """A context manager that records how long its block took and how many items it handled.

        The record is written when the block ends, by an exception too.
        """
        return _Span(self._write, self._clock_ns, name, items)

    def instant(self, name: str, value: float = 0) -> None:
        """Record that something happened now."""
        now_ns = self._clock_ns()
        self._write(_INSTANT, name, now_ns, now_ns, value)

    def counter(self, name: str, value: float) -> None:
        """Record the present value of a quantity."""
        now_ns = self._clock_ns()
        self._write(_COUNTER, name, now_ns, now_ns, value)

    def flow(self, name: str, cell: int, batch: int) -> None:
        """Record that segment (cell, batch) is handled here, by the span that is open."""
        now_ns = self._clock_ns()
        self._write(_FLOW, name, now_ns, now_ns, segment_number(cell, batch))

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

    def stage_accounts(self) -> dict[str, dict[str, Any]]:
        """`StageClock.account` of every stage."""
        with self._lock:
            clocks = list(self._stages.values())
        return {clock.name: clock.account() for clock in clocks}

    def tell(self, state: bytes) -> bool:
        """Show a document about this process to whoever looks; False if it is too long."""
        return self._block.tell(state)

    def records(self, newest: int | None = None) -> list[Record]:
        """A snapshot of what the ring holds, or of its `newest` records, oldest first."""
        names, threads = self._names.by_number(), self._threads.by_number()
        entries = self._entries(newest)
        return [
            Record(
                number=number - 1,
                kind=KINDS[kind & 0xFF],
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
        entries = self._entries(1)
        return int(entries[-1][0]) if entries else 0

    @property
    def overwritten(self) -> int:
        """How many records the ring no longer holds."""
        return max(0, self.written - self.capacity)

    def _entries(self, newest: int | None) -> list[tuple[Any, ...]]:
        entries = [e for e in RECORD.iter_unpack(memoryview(self._memory)[RING_AT:]) if e[0]]
        entries.sort()
        return entries if newest is None else entries[-newest:]


Write = Callable[[int, str, int, int, float], None]


def _writer(memory: Memory, capacity: int, names: _Interned, threads: _ThreadIds) -> Write:
    """What writes one record: a function of few names, for this is the price of every span."""
    # `next` of a C iterator is atomic under the interpreter lock; `x += 1` is not.
    following = itertools.count().__next__
    pack, size, mask, shift = RECORD.pack_into, RECORD.size, capacity - 1, lap_shift(capacity)

    def write(kind: int, name: str, begin_ns: int, end_ns: int, value: float) -> None:
        number = following()
        pack(
            memory,
            RING_AT + (number & mask) * size,
            number + 1,
            begin_ns,
            end_ns,
            value,
            names[name],
            threads[get_ident()],
            kind | (number >> shift & 0xFF00),
        )

    return write


class _Span:
    __slots__ = ("_begin_ns", "_clock_ns", "_items", "_name", "_write")

    def __init__(self, write: Write, clock_ns: Callable[[], int], name: str, items: float) -> None:
        self._write, self._clock_ns, self._name, self._items = write, clock_ns, name, items

    def __enter__(self) -> None:
        self._begin_ns = self._clock_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write(_SPAN, self._name, self._begin_ns, self._clock_ns(), self._items)


class _WaitWriter:
    def __init__(self, recorder: Recorder, stage: str) -> None:
        self._recorder, self._stage = recorder, stage

    def __call__(self, wait: str, begin_ns: int, end_ns: int) -> None:
        self._recorder._write(_WAIT, f"{self._stage}:{wait}", begin_ns, end_ns, 0)


class _Interned(dict[str, int]):
    """Names to small numbers; a known name costs one dictionary look-up."""

    def __init__(self, block: Block) -> None:
        super().__init__({"(other)": 0})
        self._block = block
        self._lock = threading.Lock()
        block.add_name("(other)")

    def __missing__(self, name: str) -> int:
        with self._lock:
            if name in self:  # another thread was first
                return self[name]
            if len(self) >= NAME_LIMIT or not self._block.add_name(name):
                return 0
            self[name] = number = len(self)
            return number

    def by_number(self) -> list[str]:
        return list(self)


class _ThreadIds(dict[int, int]):
    """Thread identifiers to small numbers, with each thread's name at its first record."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._block = block
        self._names: list[str] = []
        self._lock = threading.Lock()

    def __missing__(self, ident: int) -> int:
        with self._lock:
            # Only the thread itself looks its identifier up: nobody can have added it meanwhile.
            name = threading.current_thread().name
            if len(self._names) < THREAD_LIMIT:
                self._names.append(name)
                self._block.add_thread(name)
            self[ident] = number = len(self._names) - 1
            return number

    def by_number(self) -> list[str]:
        return list(self._names)


_current = Recorder("(not installed)", 1024)


def install(process: str, capacity: int = 65536, *, memory: Memory | None = None) -> Recorder:
    """Make a recorder named `process` the one of this process and return it.

    It writes into `memory` where that is given, whose size then is the capacity.
    """
    global _current
    if memory is not None:
        capacity = capacity_of(memory)
    _current = Recorder(process, capacity, memory=memory)
    return _current


def current() -> Recorder:
    """The recorder of this process; a small one before `install`."""
    return _current
