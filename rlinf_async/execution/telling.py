"""What a process tells of itself twice a second, in its trace's memory, for whoever looks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import orjson

from rlinf_async.tracing.recorder import Recorder

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def tell(recorder: Recorder, *, command: str, command_age_s: float) -> None:
    """Show what this process does now, its memory, its CPU time and its stages' accounts.

    A document that is too long is left out: what was told before stays.
    """
    document = {
        "at_ns": time.perf_counter_ns(),
        "pid": os.getpid(),
        "command": command,
        "command_age_s": command_age_s,
        "rss_bytes": rss_bytes(),
        "cpu_s": time.process_time(),
        "stages": recorder.stage_accounts(),
    }
    recorder.tell(orjson.dumps(document))
