"""The JSON that chrome://tracing and many other tools read (Trace Event Format).

Times are microseconds since the capture's first record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from rlinf_async.tracing.lanes import Slice, slices, stage_waits
from rlinf_async.tracing.reading import Capture, ProcessTrace

LANES = 1000
"""Numbers for the lanes of one thread."""
WAITS_FROM = 900_000


def to_chrome(capture: Capture) -> bytes:
    """The whole file."""
    begins = [int(t.records["begin_ns"].min()) for t in capture.processes if len(t.records)]
    origin_ns = min(begins, default=0)
    events = [e for trace in capture.processes for e in _process(trace, origin_ns)]
    return orjson.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _process(trace: ProcessTrace, origin_ns: int) -> Iterator[dict[str, Any]]:
    yield _meta(trace.pid, 0, "process_name", trace.process)
    named: set[int] = set()
    flowing: list[tuple[int, Slice, int]] = []
    for each in slices(trace):
        tid = each.thread * LANES + each.lane
        if tid not in named:
            named.add(tid)
            lane = f" ({each.lane + 1})" if each.lane else ""
            yield _meta(trace.pid, tid, "thread_name", trace.threads[each.thread] + lane)
        yield _complete(trace.pid, tid, each, origin_ns)
        flowing += [(segment, each, tid) for segment in each.segments]
    for segment, each, tid in flowing:
        yield {
            "ph": "t",
            "cat": "segment",
            "name": "segment",
            "id": segment,
            "pid": trace.pid,
            "tid": tid,
            "ts": (each.begin_ns - origin_ns) / 1e3,
        }
    yield from _waits(trace, origin_ns)
    for record in trace.of_kind("counter"):
        yield {
            "ph": "C",
            "name": trace.name(record),
            "pid": trace.pid,
            "ts": (int(record["begin_ns"]) - origin_ns) / 1e3,
            "args": {"value": float(record["value"])},
        }
    for record in trace.of_kind("instant"):
        yield {
            "ph": "i",
            "s": "p",
            "name": trace.name(record),
            "pid": trace.pid,
            "tid": int(record["thread"]) * LANES,
            "ts": (int(record["begin_ns"]) - origin_ns) / 1e3,
        }


def _waits(trace: ProcessTrace, origin_ns: int) -> Iterator[dict[str, Any]]:
    for order, (stage, waits) in enumerate(sorted(stage_waits(trace).items())):
        base = WAITS_FROM + order * LANES
        for lane in sorted({each.lane for each in waits}):
            yield _meta(trace.pid, base + lane, "thread_name", f"{stage} waits")
        for each in waits:
            yield _complete(trace.pid, base + each.lane, each, origin_ns)


def _complete(pid: int, tid: int, each: Slice, origin_ns: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": each.name,
        "pid": pid,
        "tid": tid,
        "ts": (each.begin_ns - origin_ns) / 1e3,
        "dur": (each.end_ns - each.begin_ns) / 1e3,
        "args": {"items": each.value},
    }


def _meta(pid: int, tid: int, name: str, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}
