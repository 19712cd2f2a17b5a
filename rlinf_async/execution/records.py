"""What crosses the streams of a pipeline: frozen records that name rows, never data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_RECORD = "$record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One finished episode; the return is the raw sum of rewards."""

    episode_return: float
    length: int
    slot: int
    number: int
    """Episodes of this slot before it; in an evaluation its number in the work list."""
    seed: int
    first_version: int
    last_version: int
    success_once: bool | None = None
    """None where the environment reports no success."""
    success_at_end: bool | None = None
    task: str = ""
    """The id of the task that the slot ran; environments with several tasks tell them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One cell over one horizon, in one row of the `segments` pool."""

    cell: int
    batch: int
    row: int
    first_slot: int
    slots: int
    horizon: int
    """(Chunk-)steps of the row; of whole episodes those that the longest list could take."""
    oldest_version: int
    newest_version: int
    env_steps: int
    """Simulator steps that were made; with chunks an entry has up to C of them."""
    episodes: tuple[Episode, ...] = ()
    arrays: Mapping[str, np.ndarray] | None = field(default=None, compare=False, repr=False)
    """Views of the row's fields, cut to this cell's slots; only inside a worker's method."""

    @property
    def entries(self) -> int:
        """Actions in the segment: (chunk-)steps of all its slots; of episodes, room for them."""
        return self.horizon * self.slots

    def with_arrays(self, row: Mapping[str, np.ndarray]) -> Segment:
        """The same segment with views of its row."""
        return dataclasses.replace(self, arrays=cut_to_slots(row, self.slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The segments of one update, in cell order."""

    index: int
    segments: tuple[Segment, ...]

    @property
    def env_steps(self) -> int:
        """Simulator steps in the batch."""
        return sum(segment.env_steps for segment in self.segments)

    @property
    def entries(self) -> int:
        """Actions in the batch; what mini-batches are made of."""
        return sum(segment.entries for segment in self.segments)

    @property
    def oldest_version(self) -> int:
        """The oldest version that acted anywhere in the batch."""
        return min(segment.oldest_version for segment in self.segments)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Episodes that ended in the batch, in cell order."""
        return tuple(episode for segment in self.segments for episode in segment.episodes)

    def with_segments(self, segments: tuple[Segment, ...]) -> Batch:
        """The same batch with other views of its segments."""
        return dataclasses.replace(self, segments=segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """What one update did; `run.log` writes it down."""

    batch: int
    version: int
    """The version that the update yields."""
    env_steps: int
    lag_versions: int
    """Version trained minus the oldest version that acted."""
    metrics: Mapping[str, float]
    episodes: tuple[Episode, ...] = ()


def cut_to_slots(row: Mapping[str, np.ndarray], slots: int) -> dict[str, np.ndarray]:
    """Views of a segment row for a cell that is smaller than the row; `[T, C, ...]` fields only."""
    return {name: view[:, :slots] if view.ndim > 1 else view for name, view in row.items()}


def record_to_json(record: Segment | Batch) -> dict[str, Any]:
    """A record as plain values, without its views."""
    if isinstance(record, Batch):
        segments = [record_to_json(segment) for segment in record.segments]
        return {_RECORD: "batch", "index": record.index, "segments": segments}
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    fields["arrays"] = None
    fields["episodes"] = [dataclasses.asdict(episode) for episode in record.episodes]
    return {_RECORD: "segment", **fields}


def is_record(value: Any) -> bool:
    """Whether `value` was made by `record_to_json`."""
    return isinstance(value, dict) and _RECORD in value


def record_from_json(data: dict[str, Any]) -> Segment | Batch:
    """The inverse of `record_to_json`."""
    fields = {key: value for key, value in data.items() if key != _RECORD}
    if data[_RECORD] == "batch":
        segments = tuple(record_from_json(item) for item in fields["segments"])
        return Batch(index=fields["index"], segments=segments)  # type: ignore[arg-type]
    fields["episodes"] = tuple(Episode(**item) for item in fields["episodes"])
    return Segment(**fields)
