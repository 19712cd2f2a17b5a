"""The live timeline: what every thread did, and what every stage waited for, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_async.tracing.account import CONTROLLER
from rlinf_async.tracing.reading import Capture, ProcessTrace

PARTS = 8
"""Parts of a column that are told apart: as many as there are heights of a block."""
SPAN_LIMIT = 20_000
"""Of more spans in a row those that are too short to be seen are left out."""
WORKING = "working"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the timeline."""

    process: str
    label: str
    is_stage: bool
    """A stage's states rather than a thread's spans."""
    cells: Sequence[tuple[str, float]]
    """By column: what it was at for most of the time (empty: nothing), and for what part of it."""
    busy: float
    """The part of the whole time in which it was at anything; of a stage: at work."""


def timeline(capture: Capture, *, until_ns: int, seconds: float, width: int) -> list[Row]:
    """The rows of all processes, `width` columns that end at `until_ns`."""
    return [
        row
        for trace in capture.processes
        for row in _rows(trace, until_ns - round(seconds * 1e9), until_ns, width)
    ]


def _rows(trace: ProcessTrace, since_ns: int, until_ns: int, width: int) -> Iterator[Row]:
    grid = _Grid(since_ns, until_ns, width * PARTS)
    if trace.process == CONTROLLER:
        for stage, account in sorted(trace.state.get("stages", {}).items()):
            if "@" in stage:
                continue  # in serial mode: the thread that works for calls says the same
            cells = _stage_cells(trace, stage, account, grid, width)
            busy = sum(part for what, part in cells if what == WORKING) / width
            yield Row(process=trace.process, label=stage, is_stage=True, cells=cells, busy=busy)
    elif not trace.threads:
        yield Row(
            process=trace.process, label="", is_stage=False, cells=[("", 0.0)] * width, busy=0.0
        )
    for thread, name in enumerate(trace.threads):
        if trace.process == CONTROLLER and not name.startswith("work-"):
            # Its loop's spans are calls that wait for hosts: the stages say the same more plainly.
            continue
        cells = _thread_cells(trace, thread, name, grid, width)
        busy = sum(part for _, part in cells) / width
        label = name.removesuffix(f"-{trace.process}")
        yield Row(process=trace.process, label=label, is_stage=False, cells=cells, busy=busy)


class _Grid:
    """Moments to places on a line of small parts."""

    def __init__(self, since_ns: int, until_ns: int, count: int) -> None:
        self.since_ns, self.until_ns, self.count = since_ns, until_ns, count
        self._per_ns = count / (until_ns - since_ns)

    def places(self, times_ns: np.ndarray) -> np.ndarray:
        """The part in which each moment lies."""
        places = ((times_ns - self.since_ns) * self._per_ns).astype(np.int64)
        return np.clip(places, 0, self.count)

    def paint(self, line: np.ndarray, records: np.ndarray, values: np.ndarray) -> None:
        """Write each record's value over its time; later ones cover earlier ones."""
        begins, ends = self.places(records["begin_ns"]), self.places(records["end_ns"])
        ends = np.maximum(ends, np.minimum(begins + 1, self.count))
        for begin, end, value in zip(begins.tolist(), ends.tolist(), values.tolist(), strict=True):
            line[begin:end] = value

    def within(self, records: np.ndarray) -> np.ndarray:
        """The records that are seen, the outer ones first."""
        seen = records[(records["end_ns"] > self.since_ns) & (records["begin_ns"] < self.until_ns)]
        if len(seen) > SPAN_LIMIT:
            lengths = seen["end_ns"] - seen["begin_ns"]
            seen = seen[lengths >= np.partition(lengths, -SPAN_LIMIT)[-SPAN_LIMIT]]
        return seen[np.lexsort((-seen["end_ns"], seen["begin_ns"]))]


def _thread_cells(
    trace: ProcessTrace, thread: int, name: str, grid: _Grid, width: int
) -> list[tuple[str, float]]:
    line = np.full(grid.count, -1, dtype=np.int64)
    names = list(trace.names)
    command = trace.state.get("command", "idle")
    if command in names and name.startswith("work-"):
        # What has not ended is not recorded yet; the process tells of it.
        at_ns = trace.state["at_ns"]
        begin_ns = at_ns - trace.state["command_age_s"] * 1e9
        if (grid.until_ns - begin_ns) > 1e9:
            line[int(grid.places(np.array([begin_ns]))[0]) :] = names.index(command)
    spans = trace.of_kind("span")
    spans = grid.within(spans[spans["thread"] == thread])
    grid.paint(line, spans, spans["name"])
    return _columns(line, names, width)


def _stage_cells(
    trace: ProcessTrace, stage: str, account: dict[str, object], grid: _Grid, width: int
) -> list[tuple[str, float]]:
    kinds = [WORKING, "input", "space", "weights", "devices", "paused"]
    kind_of = {
        number: kinds.index(name.split(":")[1])
        for number, name in enumerate(trace.names)
        if name.startswith(f"{stage}:") and name.split(":")[1] in kinds
    }
    line = np.zeros(grid.count, dtype=np.int64)
    began_ns, since_ns = int(str(account["began_ns"])), int(str(account["since_ns"]))
    line[: int(grid.places(np.array([began_ns]))[0])] = -1
    waits = trace.of_kind("wait")
    waits = grid.within(waits[np.isin(waits["name"], list(kind_of))])
    grid.paint(line, waits, np.array([kind_of[int(n)] for n in waits["name"]], dtype=np.int64))
    if account["state"] != WORKING:
        newest_ns = int(waits["end_ns"].max()) if len(waits) else 0
        # The present wait is not recorded yet, unless it has ended since.
        if newest_ns <= since_ns:
            line[int(grid.places(np.array([since_ns]))[0]) :] = kinds.index(str(account["state"]))
    return _columns(line, kinds, width)


def _columns(line: np.ndarray, names: Sequence[str], width: int) -> list[tuple[str, float]]:
    cells = []
    for column in line.reshape(width, PARTS).tolist():
        known = [value for value in column if value >= 0]
        if not known:
            cells.append(("", 0.0))
            continue
        most = max(set(known), key=known.count)
        cells.append((names[most], len(known) / PARTS))
    return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSum:
    """All spans of one name in a time."""

    name: str
    count: int
    total_s: float
    longest_s: float


def span_sums(trace: ProcessTrace, since_ns: int) -> list[SpanSum]:
    """The spans of a process that ended since, by name, those that took the most first."""
    spans = trace.of_kind("span")
    spans = spans[spans["end_ns"] >= since_ns]
    sums = []
    for number in np.unique(spans["name"]).tolist():
        lengths_s = (spans["end_ns"] - spans["begin_ns"])[spans["name"] == number] * 1e-9
        sums.append(
            SpanSum(
                name=trace.names[number],
                count=len(lengths_s),
                total_s=float(lengths_s.sum()),
                longest_s=float(lengths_s.max()),
            )
        )
    return sorted(sums, key=lambda each: -each.total_s)
