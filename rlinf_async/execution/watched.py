"""What a run shows to those who look at it: its processes' traces, its streams and its hosts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_async.execution.stream import Stream
from rlinf_async.hardware import activity
from rlinf_async.tracing.ring import RingFile

if TYPE_CHECKING:
    from rlinf_async.communication.pool import RowPool
    from rlinf_async.execution.hosts import Host
    from rlinf_async.scheduling.ledger import Ledger

RING_RECORDS = 1 << 18
"""Of each process: about a minute of a host that steps environments, 10 MiB once it is full."""


class Watched:
    """Filled by the run's parts as they come to be; read by the trace service."""

    def __init__(self) -> None:
        self.rings: dict[str, RingFile] = {}
        self.streams: list[Stream[Any]] = []
        self.hosts: Callable[[], Collection[Host]] = tuple
        self.cores: Callable[[], Mapping[str, Sequence[int]]] = dict
        """Host to the cores that the arrangement in force gives it."""
        self.cores_beside: Callable[[], Mapping[str, Sequence[int]]] = dict
        """The same while training runs, of hosts that yield cores to it."""
        self.ledger: Ledger | None = None
        self.pool: RowPool | None = None
        self.max_lag = 0

    def ring(self, process: str) -> RingFile:
        """The memory for the trace of a new process."""
        if process in self.rings:
            self.rings[process].close()
        self.rings[process] = ring = RingFile(process, RING_RECORDS)
        return ring

    def stream_rows(self) -> list[dict[str, Any]]:
        """One row for each stream: how full it is, and whose items go to whom."""
        return [
            {
                "name": each.name,
                "fill": len(each),
                "capacity": each.capacity,
                "put": each.put_count,
                "got": each.got_count,
                "peak": each.peak,
                "writer": "" if each.writer is None else each.writer.name,
                "reader": "" if each.reader is None else each.reader.name,
            }
            for each in self.streams
        ]

    def host_rows(self) -> list[dict[str, Any]]:
        """One row for each host: its process, its command, and what its environments do."""
        cores, beside = self.cores(), self.cores_beside()
        rows = [
            {
                **_host_row(host),
                "cores": cores.get(host.name, ()),
                "cores_beside": beside.get(host.name, cores.get(host.name, ())),
            }
            for host in self.hosts()
        ]
        return sorted(rows, key=lambda row: row["name"])

    def credits(self) -> dict[str, Any]:
        """Segments by where they are, the rows for them, and versions; empty before a rollout."""
        if self.ledger is None:
            return {}
        rows = {}
        if self.pool is not None:
            rows = {"rows": self.pool.descriptor.rows, "rows_free": self.pool.free_count}
        return {
            **dataclasses.asdict(self.ledger.counts),
            "drop_reasons": dict(self.ledger.drop_reasons),
            "version": self.ledger.newest,
            "batches": len(self.ledger.batches()),
            "credits": self.ledger.max_lag + 1,
            **rows,
        }

    def close(self) -> None:
        """Let go of the traces' memory."""
        for ring in self.rings.values():
            ring.close()


def _host_row(host: Any) -> dict[str, Any]:
    process = getattr(host, "process", None)
    row: dict[str, Any] = {
        "name": host.name,
        "doing": host.doing(),
        "pid": None if process is None else process.pid,
    }
    if process is None:
        return {**row, "roles": "all", **_at_work(activity.current())}
    heartbeat = host.heartbeat
    return {
        **row,
        "roles": host.stage,
        "command": host.last_command(),
        "command_age_s": 0.0 if heartbeat is None else heartbeat.command_age_s,
        "rss_bytes": 0 if heartbeat is None else heartbeat.rss_bytes,
        "silent_s": time.monotonic() - host.heard_s,
        "lost": None if host.lost is None else str(host.lost),
        **_at_work(host.board),
    }


def _at_work(board: activity.Board | None) -> dict[str, Any]:
    """What the environments have been doing for the longest time."""
    doing = [] if board is None else board.doing()
    if board is None or not doing:
        return {"at_work": "", "at_work_s": 0.0, "slowest_s": 0.0}
    return {
        "at_work": str(doing[0]),
        "at_work_s": (time.perf_counter_ns() - doing[0].began_ns) * 1e-9,
        "slowest_s": board.slowest_s(doing[0].kind),
    }
