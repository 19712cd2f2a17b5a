"""The newest lines of the controller's log, for views."""

from __future__ import annotations

from pathlib import Path

import orjson

LINE_BYTES = 400
"""About what a line takes."""
KNOWN = ("at", "event", "level", "process", "pid", "run")


def newest_entries(logs: Path, count: int) -> list[dict[str, str]]:
    """The last `count` lines or fewer: time of day, level, event, and everything else in words."""
    entries = []
    for line in _tail(logs / "controller.jsonl", count):
        try:
            entry = orjson.loads(line)
        except ValueError:
            continue
        told = " ".join(f"{key}={value}" for key, value in entry.items() if key not in KNOWN)
        entries.append(
            {
                "at": str(entry.get("at", ""))[11:19],
                "level": str(entry.get("level", "")),
                "event": str(entry.get("event", "")),
                "told": told,
            }
        )
    return entries


def _tail(file: Path, count: int) -> list[bytes]:
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - LINE_BYTES * count))
            return log.read().splitlines()[-count:]
    except OSError:
        return []
