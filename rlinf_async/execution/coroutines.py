"""Where the tasks of a loop wait: their names and the coroutines that each is inside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

TASK_ROWS = 40
"""Tasks that wait in the same place are one row; what is beyond is left out."""
INNERMOST = 8
"""What is told of each chain."""
DEEPEST = 100
_LIBRARY = f"{os.sep}asyncio{os.sep}"
_Place = tuple[CodeType, int]


def task_rows(tasks: Iterable[asyncio.Task[Any]]) -> list[dict[str, Any]]:
    """One row for each place in which tasks wait, those of the most tasks last.

    `where` is the chain of awaits, outermost first, as `function (file.py:12)`; the row of a task
    that runs at this moment ends where it runs.
    """
    # Told apart by identity: most tasks wait where others do, and words cost more than the walk.
    places: dict[tuple[int, ...], tuple[list[str], list[_Place]]] = {}
    for task in tasks:
        chain = _chain(task.get_coro())
        key = tuple(value for code, line in chain for value in (id(code), line))
        places.setdefault(key, ([], chain))[0].append(task.get_name())
    rows = [
        {"name": min(names, key=_by_number), "count": len(names), "where": _words(chain)}
        for names, chain in places.values()
    ]
    return sorted(rows, key=lambda row: (row["count"], row["name"]))[:TASK_ROWS]


def _words(chain: Sequence[_Place]) -> list[str]:
    """What the library does inside a wait says nothing of for what it is; it is left out."""
    own = [place for place in chain if _LIBRARY not in place[0].co_filename] or chain
    return [
        f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})" for code, line in own
    ]


def _by_number(name: str) -> tuple[str, int]:
    """`cell-2` before `cell-10`."""
    head, _, tail = name.rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (name, -1)


def _chain(awaited: Any) -> list[_Place]:
    found: list[_Place] = []
    while awaited is not None and len(found) < DEEPEST:
        if hasattr(awaited, "cr_frame"):
            code, frame, after = awaited.cr_code, awaited.cr_frame, awaited.cr_await
        elif hasattr(awaited, "gi_frame"):
            code, frame, after = awaited.gi_code, awaited.gi_frame, awaited.gi_yieldfrom
        elif hasattr(awaited, "ag_frame"):
            code, frame, after = awaited.ag_code, awaited.ag_frame, awaited.ag_await
        else:
            break
        if frame is not None:
            found.append((code, frame.f_lineno))
        awaited = after
    return found[-INNERMOST:]
