"""Reading what processes recorded: from their memory while they run, or from a file afterwards."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from rlinf_async.tracing.recorder import KINDS
from rlinf_async.tracing.ring import (
    RECORD,
    RING_AT,
    Head,
    Memory,
    lap_shift,
    read_head,
    read_names,
    read_state,
    read_threads,
)

RECORD_TYPE = np.dtype(
    [
        ("number", "<u8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("value", "<f8"),
        ("name", "<u4"),
        ("thread", "<u2"),
        ("kind", "<u2"),
    ]
)
"""One record of a ring; `number` counts from 1, `kind` indexes `KINDS` once it was read."""

assert RECORD_TYPE.itemsize == RECORD.size

_FILE_MAGIC = b"RLFLIGHT1\n"
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, kw_only=True)
class ProcessTrace:
    """What one process recorded, as of one moment."""

    process: str
    pid: int
    began_ns: int
    names: Sequence[str]
    threads: Sequence[str]
    records: np.ndarray
    """`RECORD_TYPE`, oldest first."""
    state: dict[str, Any] = field(default_factory=dict)
    """What the process last told of itself; see `execution.telling`."""
    lost: int = 0
    """Records that had been overwritten before they were read."""

    def of_kind(self, kind: str) -> np.ndarray:
        """The records of one of `KINDS`."""
        found: np.ndarray = self.records[self.records["kind"] == KINDS.index(kind)]
        return found

    def name(self, record: Any) -> str:
        """The name of a record."""
        return self.names[int(record["name"])]


class RingReader:
    """The reading side of one process's block; never changes it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Self:
        """Map a descriptor, which is closed."""
        try:
            size = os.fstat(descriptor).st_size
            return cls(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the memory."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()

    def head(self) -> Head | None:
        """Who writes it; None before anybody does."""
        with memoryview(self._memory) as memory:
            return read_head(memory)

    def state(self) -> dict[str, Any]:
        """What the process last told of itself; empty before it did."""
        with memoryview(self._memory) as memory:
            text = read_state(memory)
        return dict(orjson.loads(text)) if text else {}

    def read(
        self, *, since_ns: int = 0, until_ns: int | None = None, after: int = 0
    ) -> ProcessTrace | None:
        """The records that end from `since_ns` to `until_ns` and whose number is above `after`."""
        head = self.head()
        if head is None:
            return None
        ring = np.frombuffer(self._memory, RECORD_TYPE, head.capacity, RING_AT)
        records = ring[(ring["number"] > after) & (ring["end_ns"] >= since_ns)]
        del ring
        # Names after records: every name that a record refers to was written before it.
        with memoryview(self._memory) as memory:
            names, threads = read_names(memory), read_threads(memory)
        records, newest = _whole(records, head.capacity)
        if until_ns is not None:
            records = records[records["end_ns"] <= until_ns]
        return ProcessTrace(
            process=head.process,
            pid=head.pid,
            began_ns=head.began_ns,
            names=names,
            threads=threads,
            records=records,
            state=self.state(),
            lost=max(0, newest - head.capacity - after),
        )


def _whole(records: np.ndarray, capacity: int) -> tuple[np.ndarray, int]:
    """Records that nobody was writing just then, in order, and the number of the newest."""
    laps = (records["number"] - 1) >> np.uint64(lap_shift(capacity)) & np.uint64(0xFF00)
    records = records[(records["number"] > 0) & (laps == (records["kind"] & 0xFF00))]
    records = records[np.argsort(records["number"])]
    records["kind"] &= 0xFF
    return records, int(records["number"][-1]) if len(records) else 0


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The traces of all processes of a run over the same time, and what the run said of itself."""

    processes: Sequence[ProcessTrace]
    taken_ns: int
    run: dict[str, Any] = field(default_factory=dict)
    """Who it is: id, script, folder, mode."""
    status: dict[str, Any] = field(default_factory=dict)
    """What it did; see `execution.trace_service`."""

    def process(self, name: str) -> ProcessTrace | None:
        """The trace of one process."""
        return next((each for each in self.processes if each.process == name), None)

    def save(self, path: Path) -> None:
        """Write it all into one file, for `load`."""
        described = [
            {
                "process": each.process,
                "pid": each.pid,
                "began_ns": each.began_ns,
                "names": list(each.names),
                "threads": list(each.threads),
                "state": each.state,
                "lost": each.lost,
                "records": len(each.records),
            }
            for each in self.processes
        ]
        document = {
            "taken_ns": self.taken_ns,
            "run": self.run,
            "status": self.status,
            "processes": described,
        }
        text = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
        with path.open("wb") as file:
            file.write(_FILE_MAGIC + _LENGTH.pack(len(text)) + text)
            for each in self.processes:
                file.write(np.ascontiguousarray(each.records).tobytes())

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote.

        Raises:
            ValueError: the file is something else, or was cut off.
        """
        content = path.read_bytes()
        if not content.startswith(_FILE_MAGIC):
            raise ValueError(f"{path} is no flight record of this version")
        at = len(_FILE_MAGIC)
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        document = orjson.loads(content[at : at + length])
        at += length
        processes = []
        for each in document["processes"]:
            count = each.pop("records")
            records = np.frombuffer(content, RECORD_TYPE, count, at)
            at += count * RECORD_TYPE.itemsize
            processes.append(ProcessTrace(records=records, **each))
        return cls(
            processes=processes,
            taken_ns=document["taken_ns"],
            run=document["run"],
            status=document["status"],
        )


def capture(
    readers: Iterable[RingReader],
    *,
    now_ns: int,
    seconds: float,
    run: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> Capture:
    """What the processes recorded in the last `seconds`."""
    since_ns = now_ns - round(seconds * 1e9)
    # One end for all: what one process did because of another is never seen without its cause.
    traces = [reader.read(since_ns=since_ns, until_ns=now_ns) for reader in readers]
    return Capture(
        processes=[trace for trace in traces if trace is not None],
        taken_ns=now_ns,
        run=run or {},
        status=status or {},
    )
