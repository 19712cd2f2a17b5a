"""Where a process's trace lies: one block of memory that others can read while it is written.

The block of a host is a memory file that the controller makes, keeps and hands out read-only.
So a viewer reads what a host records without asking it, also when it is stuck, and after its death.
It holds a head, the names and threads that records refer to by number, two places for the state
that the process tells now and then, and the ring of records.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from dataclasses import dataclass

RING_VARIABLE = "RLINF_TRACE_FD"

RECORD = struct.Struct("<QqqdIHH")
"""number + 1 (0: never written), begin_ns, end_ns, value, name id, thread id, kind and lap.

The last field's upper byte counts how often the ring had gone round: where it does not fit the
number, somebody is just writing this record.
"""

_HEAD = struct.Struct("<8sIIqQ")
"""Magic word with the layout's version, capacity, process id, begin in ns, bytes of its name."""
_MAGIC = b"RLTRACE1"
_HEAD_BYTES = 4096
_NAMES_USED, _THREADS_USED, _STATE_NUMBER, _PROCESS = 64, 72, 80, 128
"""Places in the head: bytes of names, count of threads, number of the newest state, own name."""
PROCESS_BYTES = 512
NAMES_BYTES = 1 << 18
THREAD_LIMIT = 256
THREAD_BYTES = 64
STATE_BYTES = 1 << 17

_NAMES_AT = _HEAD_BYTES
_THREADS_AT = _NAMES_AT + NAMES_BYTES
_STATE_AT = _THREADS_AT + THREAD_LIMIT * THREAD_BYTES
RING_AT = _STATE_AT + 2 * STATE_BYTES

_COUNT = struct.Struct("<Q")
_LENGTH = struct.Struct("<H")

Memory = mmap.mmap | bytearray


def block_bytes(capacity: int) -> int:
    """Size of a block for `capacity` records."""
    return RING_AT + capacity * RECORD.size


def capacity_of(memory: Memory) -> int:
    """How many records a block holds."""
    return (len(memory) - RING_AT) // RECORD.size


def lap_shift(capacity: int) -> int:
    """A record's lap, in the upper byte of its last field, is `number >> lap_shift & 0xFF00`."""
    return max(capacity.bit_length() - 9, 0)


@dataclass(frozen=True, slots=True)
class Head:
    """What a block says of the process that writes it."""

    process: str
    pid: int
    capacity: int
    began_ns: int


class Block:
    """The writing side of one block; the ring itself is written by the `Recorder`."""

    def __init__(self, memory: Memory, process: str, capacity: int, began_ns: int) -> None:
        self.memory = memory
        self._names_used = self._threads_used = self._state_number = 0
        self._lock = threading.Lock()
        name = process.encode()[:PROCESS_BYTES]
        memory[_PROCESS : _PROCESS + len(name)] = name
        _HEAD.pack_into(memory, 0, _MAGIC, capacity, os.getpid(), began_ns, len(name))

    def add_name(self, name: str) -> bool:
        """Append a name; False if there is no room for it."""
        text = name.encode()[:65535]
        at, end = self._names_used, self._names_used + _LENGTH.size + len(text)
        if end > NAMES_BYTES:
            return False
        _LENGTH.pack_into(self.memory, _NAMES_AT + at, len(text))
        self.memory[_NAMES_AT + at + _LENGTH.size : _NAMES_AT + end] = text
        self._names_used = end
        # Last, so that a reader never sees a name that is not complete.
        _COUNT.pack_into(self.memory, _NAMES_USED, end)
        return True

    def add_thread(self, name: str) -> bool:
        """Append a thread's name; False if there is no room for it."""
        if self._threads_used >= THREAD_LIMIT:
            return False
        text = name.encode()[: THREAD_BYTES - 1]
        at = _THREADS_AT + self._threads_used * THREAD_BYTES
        self.memory[at : at + 1 + len(text)] = bytes([len(text)]) + text
        self._threads_used += 1
        _COUNT.pack_into(self.memory, _THREADS_USED, self._threads_used)
        return True

    def tell(self, state: bytes) -> bool:
        """Show `state` as the newest one; False if it is too long, and nothing changes."""
        if len(state) > STATE_BYTES - _COUNT.size:
            return False
        with self._lock:
            number = self._state_number + 1
            at = _STATE_AT + (number & 1) * STATE_BYTES
            _COUNT.pack_into(self.memory, at, len(state))
            self.memory[at + _COUNT.size : at + _COUNT.size + len(state)] = state
            self._state_number = number
            _COUNT.pack_into(self.memory, _STATE_NUMBER, number)
        return True


def read_head(memory: memoryview) -> Head | None:
    """Who writes the block; None before anybody does.

    Raises:
        ValueError: another version of the layout.
    """
    magic, capacity, pid, began_ns, length = _HEAD.unpack_from(memory, 0)
    if magic == bytes(len(_MAGIC)):
        return None
    if magic != _MAGIC:
        raise ValueError(f"a trace of another version: expected {_MAGIC!r}, got {magic!r}")
    process = bytes(memory[_PROCESS : _PROCESS + length]).decode("utf-8", "replace")
    return Head(process=process, pid=pid, capacity=capacity, began_ns=began_ns)


def read_names(memory: memoryview) -> list[str]:
    """The names by number."""
    (used,) = _COUNT.unpack_from(memory, _NAMES_USED)
    text, names, at = bytes(memory[_NAMES_AT : _NAMES_AT + used]), [], 0
    while at < used:
        (length,) = _LENGTH.unpack_from(text, at)
        at += _LENGTH.size
        names.append(text[at : at + length].decode("utf-8", "replace"))
        at += length
    return names


def read_threads(memory: memoryview) -> list[str]:
    """The threads' names by number."""
    (count,) = _COUNT.unpack_from(memory, _THREADS_USED)
    lines = bytes(memory[_THREADS_AT : _THREADS_AT + count * THREAD_BYTES])
    starts = range(0, len(lines), THREAD_BYTES)
    return [lines[at + 1 : at + 1 + lines[at]].decode("utf-8", "replace") for at in starts]


def read_state(memory: memoryview) -> bytes:
    """The newest state that the process told; empty before the first."""
    for _ in range(8):
        (number,) = _COUNT.unpack_from(memory, _STATE_NUMBER)
        if not number:
            return b""
        at = _STATE_AT + (number & 1) * STATE_BYTES
        (length,) = _COUNT.unpack_from(memory, at)
        state = bytes(memory[at + _COUNT.size : at + _COUNT.size + length])
        (after,) = _COUNT.unpack_from(memory, _STATE_NUMBER)
        # The other place is written next: this one was whole unless a second state began since.
        if after - number <= 0:
            return state
    return b""


class RingFile:
    """A block in a memory file; freed with its last holder."""

    def __init__(self, name: str, capacity: int) -> None:
        self.capacity = 1 << (capacity - 1).bit_length()
        self.descriptor = os.memfd_create(f"rlinf-trace-{name}", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, block_bytes(self.capacity))
        self.memory = mmap.mmap(self.descriptor, block_bytes(self.capacity))

    def open_read_only(self) -> int:
        """A descriptor that cannot be written through; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the descriptor; whoever still writes or reads the memory keeps it alive."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def take_inherited() -> mmap.mmap | None:
    """The block that a parent made for this process, or None; children of ours do not find it."""
    descriptor = os.environ.pop(RING_VARIABLE, None)
    if descriptor is None:
        return None
    number = int(descriptor)
    memory = mmap.mmap(number, os.fstat(number).st_size)
    os.close(number)
    return memory
