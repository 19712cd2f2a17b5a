"""What a host's environments are doing right now, in memory that outlives the host's process.

Before each reset or step an environment's cell notes slot and step on the process's board. The
board of a spawned host is a memory file that its parent keeps mapped: after a crash the parent
reads what the last note was. A note costs about half a microsecond. Times are
`time.perf_counter_ns`, on Linux CLOCK_MONOTONIC, the same for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns

BOARD_VARIABLE = "RLINF_ACTIVITY_FD"
BOARD_BYTES = 4096

_LINE = struct.Struct("<qqqqqqqq")
"""began_ns, kind, slot, step, slots, notes so far, slowest step in ns, slowest reset in ns."""
_PACK = _LINE.pack_into
_LINES = BOARD_BYTES // _LINE.size
RESTING, STEP, RESET, BUILD = range(4)
_WORDS = {STEP: "step", RESET: "reset", BUILD: "building"}


@dataclass(frozen=True, slots=True)
class Doing:
    """One thread's present work."""

    kind: int
    slot: int
    """Numbered in the whole run; the first of those that are stepped together."""
    step: int
    """Of the slot's episode, from 0; the latest of those that are stepped together."""
    slots: int
    """How many are stepped together."""
    began_ns: int
    notes: int
    """Notes of the thread so far: two readings with the same number saw the same work."""

    def __str__(self) -> str:
        if self.slots > 1:
            who = f"slots {self.slot} to {self.slot + self.slots - 1} together"
            at = f", at step {self.step} of the longest episode" if self.kind == STEP else ""
            return f"{_WORDS[self.kind]} of {who}{at}"
        if self.kind == STEP:
            return f"step {self.step} of the episode of slot {self.slot}"
        return f"{_WORDS[self.kind]} of slot {self.slot}"


class Line:
    """One thread's line of a board."""

    __slots__ = ("_began_ns", "_kind", "_memory", "_notes", "_offset", "_slowest_ns")

    def __init__(self, memory: mmap.mmap | bytearray, number: int) -> None:
        self._memory, self._offset = memory, number * _LINE.size
        self._kind, self._began_ns, self._notes = RESTING, 0, 0
        self._slowest_ns = [0] * len((RESTING, STEP, RESET, BUILD))

    def note(self, kind: int, slot: int = 0, step: int = 0, slots: int = 1) -> None:
        """`kind` of work begins now; what was noted before has ended."""
        now_ns, slowest_ns, before = perf_counter_ns(), self._slowest_ns, self._kind
        if before and (took_ns := now_ns - self._began_ns) > slowest_ns[before]:
            slowest_ns[before] = took_ns
        self._kind, self._began_ns = kind, now_ns
        self._notes += 1
        _PACK(
            self._memory,
            self._offset,
            now_ns,
            kind,
            slot,
            step,
            slots,
            self._notes,
            slowest_ns[STEP],
            slowest_ns[RESET],
        )

    def rest(self) -> None:
        """Nothing is being done with an environment."""
        self.note(RESTING)


class Board:
    """The lines of one process; any thread has one of its own."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._own = threading.local()
        self._used = 0
        self._lock = threading.Lock()

    def line(self) -> Line:
        """The calling thread's line; threads beyond the board's size write where nobody reads."""
        line: Line | None = getattr(self._own, "line", None)
        if line is None:
            with self._lock:
                number, self._used = self._used, self._used + 1
            memory = self._memory if number < _LINES else bytearray(_LINE.size)
            line = self._own.line = Line(memory, number if number < _LINES else 0)
        return line

    def doing(self) -> list[Doing]:
        """What every thread that is at work does, the one that began first at the front."""
        lines = _LINE.iter_unpack(bytes(self._memory[: _LINES * _LINE.size]))
        busy = [
            Doing(kind, slot, step, slots, began_ns, notes)
            for began_ns, kind, slot, step, slots, notes, *_ in lines
            if kind in _WORDS
        ]
        return sorted(busy, key=lambda each: each.began_ns)

    def last_note_s(self) -> float:
        """When any thread last noted something, by `time.perf_counter`; 0 if none did."""
        lines = _LINE.iter_unpack(bytes(self._memory[: _LINES * _LINE.size]))
        newest_ns: int = max(line[0] for line in lines)
        return newest_ns * 1e-9

    def slowest_s(self, kind: int) -> float:
        """Seconds of the slowest step or reset that has ended; 0 before the first."""
        column = {STEP: 6, RESET: 7}.get(kind)
        if column is None:
            return 0.0
        lines = _LINE.iter_unpack(bytes(self._memory[: _LINES * _LINE.size]))
        slowest_ns: int = max(line[column] for line in lines)
        return slowest_ns * 1e-9


class BoardFile:
    """The parent's end: a memory file that a child is to inherit; freed with its last holder."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(f"rlinf-activity-{name}", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, BOARD_BYTES)
        self._memory = mmap.mmap(self.descriptor, BOARD_BYTES)
        self.board = Board(self._memory)

    def close(self) -> None:
        """Let go of the memory; the board must not be used any more."""
        with contextlib.suppress(BufferError):
            self._memory.close()
        os.close(self.descriptor)


_current: Board | None = None


def current() -> Board:
    """The board of this process: the inherited one in a host, else one that only it can see."""
    global _current
    if _current is None:
        _current = Board(_inherited() or bytearray(BOARD_BYTES))
    return _current


def _inherited() -> mmap.mmap | None:
    descriptor = os.environ.pop(BOARD_VARIABLE, None)
    if descriptor is None:
        return None
    memory = mmap.mmap(int(descriptor), BOARD_BYTES)
    os.close(int(descriptor))
    return memory


@contextlib.contextmanager
def working() -> Iterator[Line]:
    """The calling thread's line, at rest again when the block ends."""
    line = current().line()
    try:
        yield line
    finally:
        line.rest()
