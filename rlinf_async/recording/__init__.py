"""Recorded episodes: their folder on disk, video of them, and export to LeRobot's layout.

Writing and reading need numpy only; video needs `av`, the export also `pyarrow`. Names are imported
when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_async.recording.lerobot import export_lerobot
    from rlinf_async.recording.reader import RecordedEpisode, Recording
    from rlinf_async.recording.video import VideoWriter
    from rlinf_async.recording.writer import EpisodeWriter, RecordingWriter

__all__ = [
    "EpisodeWriter",
    "RecordedEpisode",
    "Recording",
    "RecordingWriter",
    "VideoWriter",
    "export_lerobot",
]

_HOMES = {
    "EpisodeWriter": "writer",
    "RecordedEpisode": "reader",
    "Recording": "reader",
    "RecordingWriter": "writer",
    "VideoWriter": "video",
    "export_lerobot": "lerobot",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
