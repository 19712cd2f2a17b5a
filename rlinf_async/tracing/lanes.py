"""Spans side by side: what coroutines record on one thread overlaps, a track's slices must nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_async.tracing.reading import ProcessTrace


@dataclass(frozen=True, slots=True)
class Slice:
    """One span on one lane of its thread."""

    name: str
    thread: int
    lane: int
    """0 is the thread itself; more where spans overlap without nesting."""
    depth: int
    begin_ns: int
    end_ns: int
    value: float
    segments: tuple[int, ...] = ()
    """The flows that were recorded inside it, and not inside a slice within it."""


def slices(trace: ProcessTrace) -> list[Slice]:
    """The spans of a process, by thread and lane and in the order in which they begin."""
    spans = trace.of_kind("span")
    found: list[Slice] = []
    for thread in np.unique(spans["thread"]).tolist():
        found += _placed(trace, thread, spans[spans["thread"] == thread])
    return _with_segments(trace, found)


def stage_waits(trace: ProcessTrace) -> dict[str, list[Slice]]:
    """The finished waits of each stage, named `state` or `state: on whom`."""
    waits = trace.of_kind("wait")
    names: dict[str, dict[int, str]] = {}
    for number in np.unique(waits["name"]).tolist():
        stage, _, wait = trace.names[number].partition(":")
        names.setdefault(stage, {})[number] = wait.replace(":", ": ")
    return {
        stage: list(_placed(trace, 0, waits[np.isin(waits["name"], list(called))], called))
        for stage, called in names.items()
    }


def _placed(
    trace: ProcessTrace, thread: int, spans: np.ndarray, names: Mapping[int, str] | None = None
) -> Iterator[Slice]:
    # Of those that begin together the longest comes first: it holds the others. Of equals, the one
    # that was written last, for a span is written when it ends.
    spans = spans[::-1]
    spans = spans[np.lexsort((-spans["end_ns"], spans["begin_ns"]))]
    lanes: list[list[int]] = []
    called = trace.names if names is None else names
    rows = zip(
        spans["name"].tolist(),
        spans["begin_ns"].tolist(),
        spans["end_ns"].tolist(),
        spans["value"].tolist(),
        strict=True,
    )
    for name, begin_ns, end_ns, value in rows:
        lane = _lane_for(lanes, begin_ns, end_ns)
        depth = len(lanes[lane])
        lanes[lane].append(end_ns)
        yield Slice(called[name], thread, lane, depth, begin_ns, end_ns, value)


def _lane_for(lanes: list[list[int]], begin_ns: int, end_ns: int) -> int:
    """The first lane whose open slices have ended or hold the new one; `lanes` is kept up."""
    for number, open_ends in enumerate(lanes):
        while open_ends and open_ends[-1] <= begin_ns:
            open_ends.pop()
        if not open_ends or open_ends[-1] >= end_ns:
            return number
    lanes.append([])
    return len(lanes) - 1


def _with_segments(trace: ProcessTrace, found: Sequence[Slice]) -> list[Slice]:
    """Give each flow to the innermost slice of its thread that was open at its moment."""
    flows = trace.of_kind("flow")
    if not len(flows):
        return list(found)
    order = sorted(range(len(found)), key=lambda at: (found[at].begin_ns, found[at].depth))
    begins = np.array([found[at].begin_ns for at in order])
    held: dict[int, list[int]] = {}
    rows = zip(
        flows["thread"].tolist(), flows["begin_ns"].tolist(), flows["value"].tolist(), strict=True
    )
    for thread, at_ns, value in rows:
        index = int(np.searchsorted(begins, at_ns, side="right")) - 1
        while index >= 0:
            each = found[order[index]]
            if each.thread == thread and each.end_ns >= at_ns:
                held.setdefault(order[index], []).append(int(value))
                break
            index -= 1
    return [
        each
        if at not in held
        else Slice(
            each.name,
            each.thread,
            each.lane,
            each.depth,
            each.begin_ns,
            each.end_ns,
            each.value,
            tuple(held[at]),
        )
        for at, each in enumerate(found)
    ]
