"""Metrics on disk without a wait on the event loop: a bounded queue, one thread, counted drops."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import orjson

from rlinf_async.errors import StreamClosed
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.tensorboard import EventFile

log = get_logger()

STEP_AXIS = "env_steps"
"""The key whose value is the step axis of every curve."""

Row = Mapping[str, float | int | str]


class Sink(Protocol):
    """Where rows go; called by the writer's thread only."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Appends each row as one line and flushes it, so that a killed run keeps what it wrote.

    A number that is not finite becomes null.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)

    def write(self, row: Row) -> None:
        line = orjson.dumps(
            dict(row), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        )
        self._file.write(line)

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Scalars over env steps for TensorBoard; the file is made at the first row."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EventFile | None = None

    def write(self, row: Row) -> None:
        if self._file is None:
            self._file = EventFile(self._folder)
        scalars = {
            key: float(value)
            for key, value in row.items()
            if key != STEP_AXIS and not isinstance(value, str)
        }
        self._file.add(scalars, step=int(row.get(STEP_AXIS, 0)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class MetricsWriter:
    """Rows to `metrics.jsonl` and TensorBoard, from a thread of its own.

    `write` never waits: when the queue is full the row is dropped and counted. A sink that
    raises is logged and left out from then on; the others go on.
    """

    def __init__(
        self, folder: Path, *, capacity: int = 1024, sinks: list[Sink] | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"metrics: capacity must be >= 1, got {capacity}")
        self.dropped = 0
        """Rows that were not written because the disk could not keep up."""
        self.path = folder / "metrics.jsonl"
        # The JSON file is opened here, so that a folder that cannot be written is an error at once.
        self._sinks: list[Sink] = (
            [JsonLines(self.path), TensorBoard(folder)] if sinks is None else list(sinks)
        )
        self._capacity = capacity
        self._rows: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._drain, name="metrics", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> bool:
        """Queue one row; False if it was dropped. Raises StreamClosed after `close`."""
        with self._changed:
            if self._closing:
                raise StreamClosed("metrics: a row was written after close()")
            if len(self._rows) >= self._capacity:
                self.dropped += 1
                return False
            self._rows.append(dict(row))
            self._changed.notify()
        return True

    def close(self, limit_s: float = 5.0) -> None:
        """Write what is queued, for at most `limit_s`; what is left then counts as dropped.

        Blocks the calling thread: from a coroutine use `asyncio.to_thread`. Idempotent.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        with self._changed:
            self.dropped += len(self._rows)
            self._rows.clear()
        if self.dropped:
            log.warning("metrics_dropped", rows=self.dropped)

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._rows) or self._closing)
                if not self._rows:
                    break
                row = self._rows.popleft()
            self._to_sinks("write", row)
        self._to_sinks("close")

    def _to_sinks(self, action: str, *arguments: Row) -> None:
        for sink in tuple(self._sinks):
            try:
                getattr(sink, action)(*arguments)
            except Exception as error:
                self._sinks.remove(sink)
                log.error("metrics_sink_failed", sink=type(sink).__name__, error=repr(error))
