"""Row pools: shared memory of a fixed number of rows with declared fields.

The memory is a memfd: it has no name, the kernel frees it with its last holder, and /dev/shm's
size does not matter. Other processes of the same user open it through the owner's /proc entry.
Only the owner knows which rows are free; messages carry row numbers.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlinf_async.communication.fields import Field, Layout
from rlinf_async.errors import BadInput, EngineError, PeerGone
from rlinf_async.hardware.devices import memory_available_bytes

Row = dict[str, NDArray[Any]]

_HEADER_BYTES = 4096
_MAGIC = b"rlinf row pool 1"
_POISON_BYTE = 0xA5
_FILL_BYTES = 64 * 1024 * 1024


class PoolEmpty(EngineError):
    """`take` found no free row; whoever takes must have counted its credits before."""


class RowNotTaken(EngineError):
    """A row was given back that nobody had taken (given twice, for instance)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDescriptor:
    """All that another process needs to attach."""

    name: str
    pid: int
    fd: int
    rows: int
    fields: tuple[Field, ...]
    total_bytes: int
    token: str
    """Stands in the memory's header too: a recycled pid or descriptor is never taken for it."""

    def to_json(self) -> dict[str, Any]:
        """A dictionary that orjson can write."""
        fields = [{"name": f.name, "shape": list(f.shape), "dtype": f.dtype} for f in self.fields]
        return {
            "name": self.name,
            "pid": self.pid,
            "fd": self.fd,
            "rows": self.rows,
            "fields": fields,
            "total_bytes": self.total_bytes,
            "token": self.token,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        fields = tuple(
            Field(name=f["name"], shape=tuple(f["shape"]), dtype=f["dtype"]) for f in data["fields"]
        )
        return cls(**{**data, "fields": fields})


class RowPool:
    """`rows` records in shared memory. Create it in one process, attach it in others.

    Nothing here synchronises: a row belongs to whoever was told its number last. The owner maps
    the memory only when it first looks into a row, so that a controller can own a pool without
    holding its contents.
    """

    def __init__(self, descriptor: PoolDescriptor, fd: int, *, owner: bool, poison: bool) -> None:
        self.descriptor = descriptor
        self._layout = Layout(descriptor.fields)
        self._fd: int | None = fd
        self._map: mmap.mmap | None = None
        self._views: dict[int, Row] = {}
        self._owner = owner
        self._poison = poison
        # The row given back last is taken first: its cache lines are the warmest.
        self._free = list(range(descriptor.rows - 1, -1, -1)) if owner else []
        self._taken = bytearray(descriptor.rows)

    @classmethod
    def create(cls, name: str, fields: Sequence[Field], rows: int, *, poison: bool = False) -> Self:
        """A new pool, its memory really allocated, all rows free and zero.

        Args:
            poison: fill free rows with NaN (floats), 0xA5 bytes (integers) and True (booleans),
                so that whoever reads a row that it does not hold computes garbage visibly.

        Raises:
            BadInput: less memory is available than the pool needs, or too few descriptors.
        """
        if rows < 1:
            raise BadInput(f"row pool {name!r}", "needs at least one row", got=rows)
        layout = Layout(fields)
        total = _HEADER_BYTES + rows * layout.row_bytes
        _check_memory(name, total, rows, layout.row_bytes)
        token = secrets.token_hex(16)
        fd = _allocate(name, total, rows, layout.row_bytes)
        os.pwrite(fd, _MAGIC + token.encode(), 0)
        descriptor = PoolDescriptor(
            name=name,
            pid=os.getpid(),
            fd=fd,
            rows=rows,
            fields=layout.fields,
            total_bytes=total,
            token=token,
        )
        pool = cls(descriptor, fd, owner=True, poison=poison)
        if poison:
            for number in range(rows):
                pool._fill_with_poison(number)
        return pool

    @classmethod
    def attach(cls, descriptor: PoolDescriptor) -> Self:
        """Map the pool of another process of this user on this machine (or one's own again).

        Raises:
            PeerGone: the owner has ended or closed the pool.
        """
        fd = _open_of_owner(descriptor)
        return cls(descriptor, fd, owner=False, poison=False)

    @property
    def name(self) -> str:
        """The pool's name, the same in every process."""
        return self.descriptor.name

    @property
    def free_count(self) -> int:
        """How many rows can be taken now (owner only)."""
        self._must_own()
        return len(self._free)

    def take(self) -> int:
        """The number of a free row, now taken (owner only); PoolEmpty if there is none."""
        self._must_own()
        if not self._free:
            rows = self.descriptor.rows
            raise PoolEmpty(f"row pool {self.descriptor.name!r}: all {rows} rows are taken")
        number = self._free.pop()
        self._taken[number] = 1
        return number

    def give(self, number: int) -> None:
        """Free a taken row (owner only); RowNotTaken if it is free already or no row at all."""
        self._must_own()
        if not 0 <= number < self.descriptor.rows or not self._taken[number]:
            raise RowNotTaken(f"row pool {self.descriptor.name!r}: row {number} is not taken")
        if self._poison:
            self._fill_with_poison(number)
        self._taken[number] = 0
        self._free.append(number)

    def row(self, number: int) -> Row:
        """Writable views of one row's fields, by name; the same arrays at every call."""
        views = self._views.get(number)
        if views is None:
            views = self._views[number] = self._make_views(number)
        return views

    def close(self) -> None:
        """Let go of the memory. May be called twice.

        Arrays handed out before stay valid: they keep the mapping alive until they are dropped.
        """
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        # Dropped, not closed: `mmap.close` would unmap the memory under arrays that are still held
        # (numpy's constructor keeps a reference to the map but no lock on its buffer).
        self._views.clear()
        self._map = None

    def _make_views(self, number: int) -> Row:
        if not 0 <= number < self.descriptor.rows:
            raise IndexError(f"row pool {self.descriptor.name!r} has no row {number}")
        start = _HEADER_BYTES + number * self._layout.row_bytes
        memory = self._memory()
        return {
            field.name: np.ndarray(
                field.shape,
                dtype=field.dtype,
                buffer=memory,
                offset=start + self._layout.offsets[field.name],
            )
            for field in self._layout.fields
        }

    def _memory(self) -> mmap.mmap:
        if self._map is None:
            if self._fd is None:
                raise ValueError(f"row pool {self.descriptor.name!r} is closed")
            # Populate: page faults in the middle of a rollout would show up as jitter.
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._map = mmap.mmap(self._fd, self.descriptor.total_bytes, flags=flags)
        return self._map

    def _fill_with_poison(self, number: int) -> None:
        for array in self.row(number).values():
            if array.dtype.kind == "f":
                array.fill(np.nan)
            elif array.dtype.kind == "b":
                array.fill(True)
            else:
                array.reshape(-1).view(np.uint8).fill(_POISON_BYTE)

    def _must_own(self) -> None:
        if not self._owner:
            raise RuntimeError(
                f"row pool {self.descriptor.name!r} belongs to process {self.descriptor.pid}"
            )


def _check_memory(name: str, total: int, rows: int, row_bytes: int) -> None:
    available = memory_available_bytes()
    if total > available:
        raise _too_little(name, total, available, rows, row_bytes)


def _too_little(name: str, total: int, available: int, rows: int, row_bytes: int) -> BadInput:
    return BadInput(
        f"row pool {name!r}",
        "not enough memory",
        expected=f"{total:,} bytes ({rows:,} rows x {row_bytes:,} bytes)",
        got=f"{available:,} bytes free",
        fix="use fewer environments, a shorter horizon, smaller observations or a smaller max_lag",
    )


def _allocate(name: str, total: int, rows: int, row_bytes: int) -> int:
    """A memfd whose pages exist: lack of memory shows now, not as a SIGBUS in mid-run."""
    try:
        fd = os.memfd_create(f"rlinf-{name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as cause:
        fix = "raise `ulimit -n`" if cause.errno == errno.EMFILE else ""
        raise BadInput(f"row pool {name!r}", f"no memfd: {cause.strerror}", fix=fix) from cause
    try:
        os.ftruncate(fd, total)
        for start in range(0, total, _FILL_BYTES):
            os.posix_fallocate(fd, start, min(_FILL_BYTES, total - start))
        # Nobody may change the size any more: a shorter file would kill its readers.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as cause:
        os.close(fd)
        available = memory_available_bytes()
        raise _too_little(name, total, available, rows, row_bytes) from cause
    return fd


def _open_of_owner(descriptor: PoolDescriptor) -> int:
    path = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
    gone = f"row pool {descriptor.name!r} of process {descriptor.pid} is gone"
    try:
        # O_NONBLOCK: if the number now names a pipe, opening it must not wait for its other end.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as cause:
        raise PeerGone(f"{gone}: {cause.strerror}") from cause
    expected = _MAGIC + descriptor.token.encode()
    status = os.fstat(fd)
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_size != descriptor.total_bytes
        or os.pread(fd, len(expected), 0) != expected
    ):
        os.close(fd)
        raise PeerGone(f"{gone}: another file has taken its descriptor")
    return fd
