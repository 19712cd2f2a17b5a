"""Segments on their way: which processes handled each, and whether a link is missing."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_async.tracing.lanes import slices
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.recorder import CELLS

STATIONS = ("render", "rollout", "train")
"""What handles a segment, in this order; a span belongs to the station its name begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One segment and when each station took it up."""

    cell: int
    batch: int
    stations: dict[str, tuple[str, int]]
    """Station to the process and the moment, in ns."""

    @property
    def complete(self) -> bool:
        """Whether every station was passed, in order."""
        if set(self.stations) != set(STATIONS):
            return False
        moments = [self.stations[station][1] for station in STATIONS]
        return moments == sorted(moments)


def segment_paths(capture: Capture) -> list[Path]:
    """The paths of all segments that appear in the capture, in the order of batches and cells."""
    found: dict[int, dict[str, tuple[str, int]]] = {}
    for trace in capture.processes:
        for each in slices(trace):
            station = each.name.partition(".")[0]
            for segment in each.segments:
                found.setdefault(segment, {})[station] = (trace.process, each.begin_ns)
    return [
        Path(cell=number % CELLS, batch=number // CELLS, stations=stations)
        for number, stations in sorted(found.items())
    ]
