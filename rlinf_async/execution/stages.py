"""What stands between rollout and train: batches made of segments, and the user's own stages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from rlinf_async.errors import EngineError, StageExited
from rlinf_async.execution.records import Batch, Segment
from rlinf_async.execution.stream import Stream

Stage = Callable[[Stream[Any]], AsyncIterator[Any]]


async def pack_batches(
    segments: Stream[Segment], batches: Stream[Batch], cells: int, iterations: int
) -> None:
    """Put each batch as soon as the segments of all its cells are there, in cell order.

    Waits for:    segments (input), space behind it (space).
    Ends when:    the segments end; EngineError if that is before the last batch.
    """
    waiting: dict[int, dict[int, Segment]] = {}
    index = 0
    async for segment in segments:
        waiting.setdefault(segment.batch, {})[segment.cell] = segment
        while len(waiting.get(index, ())) == cells:
            parts = waiting.pop(index)
            ordered = tuple(parts[cell] for cell in sorted(parts))
            await batches.put(Batch(index=index, segments=ordered))
            index += 1
    if index < iterations:
        raise EngineError(f"segments ended after {index} of {iterations} batches")
    batches.close()


async def run_stage(stage: Stage, items: Stream[Any], out: Stream[Any]) -> None:
    """Put what the user's `stage` yields; it must take all its items."""
    async for item in stage(items):
        await out.put(item)
    if len(items) or not items.closed:
        raise StageExited(
            f"stage {out.name!r} ended after {items.got_count} items of {items.name!r}, "
            "and there are more"
        )
    out.close()
