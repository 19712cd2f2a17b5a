"""Where the tasks of a loop wait: their names and the coroutines that each is inside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

TASK_ROWS = 60
"""Tasks that wait in the same place are one row; what is beyond is left out."""
INNERMOST = 8
"""What is told of each chain."""
DEEPEST = 100


def task_rows(tasks: Iterable[asyncio.Task[Any]]) -> list[dict[str, Any]]:
    """One row for each place in which tasks wait, those of the most tasks last.

    `where` is the chain of awaits, outermost first, as `function (file.py:12)`; the row of a task
    that runs at this moment ends where it runs.
    """
    places: dict[tuple[str, ...], list[str]] = {}
    for task in tasks:
        places.setdefault(tuple(_chain(task.get_coro())), []).append(task.get_name())
    rows = [
        {"name": min(names, key=_by_number), "count": len(names), "where": list(where)}
        for where, names in places.items()
    ]
    return sorted(rows, key=lambda row: (row["count"], row["name"]))[:TASK_ROWS]


def _by_number(name: str) -> tuple[str, int]:
    """`cell-2` before `cell-10`."""
    head, _, tail = name.rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (name, -1)


def _chain(awaited: Any) -> list[str]:
    found: list[str] = []
    while awaited is not None and len(found) < DEEPEST:
        for kind in ("cr", "gi", "ag"):
            if hasattr(awaited, f"{kind}_code"):
                frame = getattr(awaited, f"{kind}_frame")
                if frame is not None:
                    found.append(_place(getattr(awaited, f"{kind}_code"), frame.f_lineno))
                after = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
                awaited = getattr(awaited, after)
                break
        else:
            break
    return found[-INNERMOST:]


def _place(code: CodeType, line: int) -> str:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{line})"
