"""Perfetto's file format: a `Trace` of packets, read by https://ui.perfetto.dev and others.

Written from Perfetto's published message definitions (`protos/perfetto/trace/track_event`). Each
process has a track; below it lie its threads, further lanes where spans of coroutines overlap, one
track for each stage's waits and one for each counter. A segment's flow has the same number in all
processes, so that its way from render to rollout to train is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from rlinf_async.tracing.lanes import Slice, slices, stage_waits
from rlinf_async.tracing.reading import Capture, ProcessTrace
from rlinf_async.tracing.views.protobuf import double, fixed, number, text

SEQUENCE = 1
MONOTONIC = 3
"""`BUILTIN_CLOCK_MONOTONIC`: what all our processes read, so that there is nothing to align."""
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2


def to_perfetto(capture: Capture) -> bytes:
    """The whole file."""
    # Only the first packet may say that there is no earlier state to wait for.
    first = _packet(number(13, _STATE_CLEARED))
    processes = enumerate(capture.processes, start=1)
    return first + b"".join(p for order, trace in processes for p in _process(order, trace))


def _process(order: int, trace: ProcessTrace) -> Iterator[bytes]:
    tracks = _Tracks(order, trace)
    yield tracks.process()
    found = slices(trace)
    for thread in sorted({each.thread for each in found}):
        yield tracks.thread(thread)
    for thread, lane in sorted({(each.thread, each.lane) for each in found if each.lane}):
        yield tracks.lane(thread, lane)
    yield from _events([(tracks.of(each.thread, each.lane), each) for each in found])
    for stage, waits in sorted(stage_waits(trace).items()):
        for lane in sorted({each.lane for each in waits}):
            yield tracks.named(_waits_of(stage, lane))
        yield from _events([(tracks.uuid(_waits_of(stage, w.lane)), w) for w in waits])
    yield from _points(trace, tracks)


def _waits_of(stage: str, lane: int) -> str:
    return f"{stage} waits ({lane + 1})" if lane else f"{stage} waits"


class _Tracks:
    """The tracks of one process: their numbers and their descriptions."""

    def __init__(self, order: int, trace: ProcessTrace) -> None:
        self._trace, self._base = trace, order << 32
        self._numbers: dict[str, int] = {}

    def uuid(self, key: str) -> int:
        """The number of a track; the same key has the same one."""
        return self._base + self._numbers.setdefault(key, len(self._numbers) + 1)

    def of(self, thread: int, lane: int) -> int:
        """The number of a thread's track, or of a lane beside it."""
        return self.uuid(f"thread {thread}" if not lane else f"thread {thread} lane {lane}")

    def process(self) -> bytes:
        """The track of the process itself."""
        described = number(1, self._trace.pid) + text(6, self._trace.process)
        return _packet(text(60, number(1, self._base) + text(3, described)))

    def thread(self, thread: int) -> bytes:
        """The track of a thread; its kernel id is not recorded, so a small number stands for it."""
        # A thread with its process's number is taken for the main thread.
        tid = self._trace.pid if not thread else (self._trace.pid << 8) + thread
        described = number(1, self._trace.pid) + number(2, tid)
        described += text(5, self._trace.threads[thread])
        return _packet(text(60, number(1, self.of(thread, 0)) + text(4, described)))

    def lane(self, thread: int, lane: int) -> bytes:
        """A track for what overlaps on a thread."""
        return self._child(self.of(thread, lane), f"{self._trace.threads[thread]} ({lane + 1})")

    def named(self, name: str) -> bytes:
        """A track of any name below the process."""
        return self._child(self.uuid(name), name)

    def counter(self, name: str) -> bytes:
        """A counter's track below the process."""
        described = number(1, self.uuid(f"counter {name}")) + number(5, self._base)
        return _packet(text(60, described + text(2, name) + text(8, b"")))

    def _child(self, uuid: int, name: str) -> bytes:
        return _packet(text(60, number(1, uuid) + number(5, self._base) + text(2, name)))


def _events(placed: Sequence[tuple[int, Slice]]) -> Iterator[bytes]:
    """Begins and ends of slices, each track's in the order of time, ends innermost first."""
    events = []
    for uuid, each in placed:
        events.append((uuid, each.begin_ns, 1, each.depth, each))
        # At one moment ends come before begins, but an empty slice's own end after its begin.
        rank = 0 if each.end_ns > each.begin_ns else 2
        events.append((uuid, each.end_ns, rank, -each.depth, each))
    events.sort(key=lambda event: event[:4])
    for uuid, at_ns, rank, _, each in events:
        if rank == 1:
            flows = b"".join(fixed(47, segment + 1) for segment in each.segments)
            items = _items(each.value) if each.value else b""
            yield _event(at_ns, uuid, _BEGIN, _name(each.name) + flows + items)
        else:
            yield _event(at_ns, uuid, _END, b"")


def _points(trace: ProcessTrace, tracks: _Tracks) -> Iterator[bytes]:
    for kind, type_ in (("counter", _COUNTER), ("instant", _INSTANT)):
        described: set[str] = set()
        for record in trace.of_kind(kind):
            name = trace.name(record)
            if name not in described:
                described.add(name)
                yield tracks.counter(name) if kind == "counter" else tracks.named(f"{name} events")
            at_ns, value = int(record["begin_ns"]), float(record["value"])
            if kind == "counter":
                yield _event(at_ns, tracks.uuid(f"counter {name}"), type_, double(44, value))
            else:
                body = _name(name) + _items(value)
                yield _event(at_ns, tracks.uuid(f"{name} events"), type_, body)


@lru_cache(maxsize=8192)
def _name(name: str) -> bytes:
    return text(23, name)


@lru_cache(maxsize=1024)
def _items(value: float) -> bytes:
    return text(4, text(10, "items") + double(5, value))


def _event(at_ns: int, track: int, type_: int, body: bytes) -> bytes:
    event = number(9, type_) + number(11, track) + body
    return _packet(number(8, at_ns) + number(58, MONOTONIC) + text(11, event), _NEEDS_STATE)


def _packet(content: bytes, flags: int = 0) -> bytes:
    state = number(13, flags) if flags else b""
    return text(1, number(10, SEQUENCE) + state + content)
