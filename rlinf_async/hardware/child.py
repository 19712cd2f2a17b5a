"""The first thing a host process runs: it settles before any heavy import.

Only the standard library is imported, and `settle` must come before numpy or torch, because they
read the core set and the thread counts when they load.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence

CORES_VARIABLE = "RLINF_CORES"
PARENT_VARIABLE = "RLINF_PARENT"
ORPHAN_EXIT = 70
"""Exit code of a host whose parent was already gone when it started."""

_PR_SET_PDEATHSIG = 1
_parent_pidfd: int | None = None


def settle_from_environment() -> None:
    """`settle` with what `HostProcess.spawn` left in the environment; nothing when run by hand."""
    if PARENT_VARIABLE not in os.environ:
        return
    cores = [int(core) for core in os.environ.get(CORES_VARIABLE, "").split(",") if core]
    settle(int(os.environ[PARENT_VARIABLE]), cores)


def settle(parent_pid: int, cores: Sequence[int]) -> None:
    """Bind this process to `cores` and its life to `parent_pid`.

    Afterwards: SIGKILL comes when the parent's main thread ends; SIGINT is ignored (the controller
    decides what a Ctrl-C means); SIGTERM ends the process; a crash in native code prints stacks.
    Ends the process with ORPHAN_EXIT if the parent is gone already.
    """
    global _parent_pidfd
    if cores:
        os.sched_setaffinity(0, cores)
    _die_with_parent()
    # The signal is only for a death that comes later, so the order is: ask for it, then look.
    if os.getppid() != parent_pid:
        os._exit(ORPHAN_EXIT)
    _parent_pidfd = os.pidfd_open(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    faulthandler.enable(file=sys.stderr, all_threads=True)


def parent_pidfd() -> int:
    """A descriptor that becomes readable when the parent ends; for `loop.add_reader`."""
    if _parent_pidfd is None:
        raise RuntimeError("parent_pidfd() before settle()")
    return _parent_pidfd


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
