"""Logs: events as JSON lines, one file per process.

Event names are snake_case facts in the past tense; values are fields. `bind` adds context (run,
worker, stage) to every event of this task, of the tasks it starts and of `asyncio.to_thread`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

INFO = 20


class _File:
    """The file of this process and the fields of every event; loggers share the one instance.

    Loggers are cached at their first event, so what they write to may change but not who it is.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._fields: dict[str, Any] = {}

    def open(self, path: Path, process: str) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._fields = {"process": process, "pid": os.getpid()}

    def write(self, line: bytes) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, line + b"\n")

    # The methods that structlog calls, by level.
    debug = info = warning = error = critical = exception = msg = write

    def stamp(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        # Not by contextvars: a new thread does not inherit them.
        return {"at": datetime.now(UTC).isoformat(timespec="microseconds"), **self._fields, **event}


_file = _File()


def configure(process: str, folder: Path, *, level: int = INFO) -> Path:
    """Send this process's events to `folder/<process>.jsonl`, and return that file.

    An event is one write(2) of a few hundred bytes into the page cache, so it may be logged on the
    event loop. OSError if the file cannot be made.
    """
    path = folder / f"{process}.jsonl"
    _file.open(path, process)
    structlog.configure(
        processors=[
            _file.stamp,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _to_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _file,
        cache_logger_on_first_use=True,
    )
    return path


def bind(**context: Any) -> None:
    """Add fields to every later event of this task and of the tasks it starts."""
    structlog.contextvars.bind_contextvars(**context)


def get_logger() -> FilteringBoundLogger:
    """A logger; module level is fine, it takes its configuration at its first event."""
    return cast(FilteringBoundLogger, structlog.get_logger())


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> bytes:
    return orjson.dumps(
        event, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    )
