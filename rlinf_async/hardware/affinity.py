"""Moving a running process to other cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path


def move(pid: int, cores: Collection[int]) -> None:
    """Let every thread of process `pid` and of its children run on `cores` only.

    Threads and processes made later inherit it. What ends meanwhile is passed over: whoever watches
    processes reports that.
    """
    wanted = set(cores)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.sched_setaffinity(int(thread.name), wanted)
                for child in (thread / "children").read_text().split():
                    move(int(child), wanted)
