"""The stacks of another process of this user, without its cooperation where that is permitted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PY_SPY_S = 4.0
_PRINT_S = 1.0
_STEP_S = 0.02


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does (R, S, D, T, Z); empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state = stat.rpartition(")")[2].split()[0]
    return "" if state == "Z" else state


def stacks_of(pid: int, printed_to: Path) -> str:
    """The Python stacks of a process, or why they cannot be had.

    py-spy reads them from outside, if it is installed and the kernel lets it. Otherwise SIGUSR1
    asks a process that handles it (`faulthandler`) to print them to `printed_to`.
    """
    return _by_py_spy(pid) or _by_signal(pid, printed_to) or "no stacks: py-spy is not permitted"


def _by_py_spy(pid: int) -> str:
    beside = Path(sys.executable).with_name("py-spy")
    command = str(beside) if beside.exists() else shutil.which("py-spy")
    if command is None:
        return ""
    try:
        done = subprocess.run(
            [command, "dump", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _by_signal(pid: int, printed_to: Path) -> str:
    if not _handles(pid, signal.SIGUSR1):
        return ""
    before = _size(printed_to)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
    give_up_s = time.monotonic() + _PRINT_S
    size = before
    while time.monotonic() < give_up_s:
        time.sleep(_STEP_S)
        # Complete once it has begun and grows no more.
        if size > before and _size(printed_to) == size:
            break
        size = _size(printed_to)
    with contextlib.suppress(OSError), printed_to.open("rb") as file:
        file.seek(before)
        return file.read().decode("utf-8", "replace").strip()
    return ""


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process catches the signal, which would end it otherwise."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
