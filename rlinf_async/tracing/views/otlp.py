"""Spans of a capture for OpenTelemetry: sent to a collector by OTLP over HTTP.

One trace for a run. Each process is a resource; spans are children of the spans that hold them,
and a span that takes a segment up links to the one that had it before.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from rlinf_async.errors import PeerGone
from rlinf_async.tracing.lanes import Slice, slices
from rlinf_async.tracing.reading import Capture, ProcessTrace
from rlinf_async.tracing.recorder import CELLS

AT_ONCE = 512
"""Spans of one request."""
LIMIT_S = 10.0
SCOPE = InstrumentationScope("rlinf_async")


def send(capture: Capture, endpoint: str) -> int:
    """Send all spans to `endpoint`, such as http://localhost:4318/v1/traces; returns how many.

    Raises:
        PeerGone: the collector does not take them.
    """
    spans = list(to_spans(capture))
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=LIMIT_S)
    try:
        for at in range(0, len(spans), AT_ONCE):
            if exporter.export(spans[at : at + AT_ONCE]) is not SpanExportResult.SUCCESS:
                raise PeerGone(
                    f"{endpoint} does not take spans: {at:,} of {len(spans):,} were sent; "
                    "see what was printed above"
                )
    finally:
        exporter.shutdown()
    return len(spans)


def to_spans(capture: Capture) -> Iterator[ReadableSpan]:
    """Every span, those of a process together and in the order of their begins."""
    digest = hashlib.sha256(str(capture.run.get("id", "run")).encode()).digest()
    trace_id = int.from_bytes(digest[:16], "big")
    # The clock of all processes counts from the machine's start.
    to_epoch_ns = time.time_ns() - time.perf_counter_ns()
    founds = [(trace, slices(trace)) for trace in capture.processes]
    contexts = [
        [_context(trace_id, trace.process, each) for each in found] for trace, found in founds
    ]
    before = _stations(founds, contexts)
    for (trace, found), mine in zip(founds, contexts, strict=True):
        resource = Resource(
            {
                "service.name": "rlinf_async",
                "service.instance.id": trace.process,
                "process.pid": trace.pid,
                "rlinf.run": str(capture.run.get("id", "")),
            }
        )
        parents = [None if at is None else mine[at] for at in _parents(found)]
        for at, each in enumerate(found):
            links = [Link(before[s, at, trace.process]) for s in each.segments
                     if (s, at, trace.process) in before]  # fmt: skip
            yield ReadableSpan(
                name=each.name,
                context=mine[at],
                parent=parents[at],
                resource=resource,
                attributes=_attributes(trace, each),
                links=links,
                kind=SpanKind.INTERNAL,
                start_time=each.begin_ns + to_epoch_ns,
                end_time=each.end_ns + to_epoch_ns,
                instrumentation_scope=SCOPE,
            )


def _context(trace_id: int, process: str, each: Slice) -> SpanContext:
    key = f"{process} {each.thread} {each.lane} {each.depth} {each.name} {each.begin_ns}"
    span_id = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") or 1
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(1))


def _attributes(trace: ProcessTrace, each: Slice) -> dict[str, str | float | Sequence[int]]:
    told: dict[str, str | float | Sequence[int]] = {"thread.name": trace.threads[each.thread]}
    if each.value:
        told["items"] = each.value
    if each.segments:
        told["cells"] = [number % CELLS for number in each.segments]
        told["batch"] = each.segments[0] // CELLS
    return told


def _parents(found: Sequence[Slice]) -> list[int | None]:
    """For each slice the one above it on its lane."""
    above: dict[tuple[int, int, int], int] = {}
    parents: list[int | None] = [None] * len(found)
    for at in sorted(range(len(found)), key=lambda at: (found[at].begin_ns, found[at].depth)):
        each = found[at]
        if each.depth:
            parents[at] = above.get((each.thread, each.lane, each.depth - 1))
        above[each.thread, each.lane, each.depth] = at
    return parents


def _stations(
    founds: Sequence[tuple[ProcessTrace, Sequence[Slice]]],
    contexts: Sequence[Sequence[SpanContext]],
) -> Mapping[tuple[int, int, str], SpanContext]:
    """(segment, number of a slice, process) -> the slice that had the segment before it."""
    ways: dict[int, list[tuple[int, int, str, SpanContext]]] = {}
    for (trace, found), mine in zip(founds, contexts, strict=True):
        for at, each in enumerate(found):
            for segment in each.segments:
                ways.setdefault(segment, []).append((each.begin_ns, at, trace.process, mine[at]))
    before = {}
    for segment, way in ways.items():
        way.sort(key=lambda station: station[0])
        for (*_, context), (_, at, process, _) in itertools.pairwise(way):
            before[segment, at, process] = context
    return before
