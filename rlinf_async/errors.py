"""Every error that a user of the engine can meet.

RlinfError
├── Interrupted         a signal ended the run                                exit code 128 + signal
├── BadInput            wrong input, found before any worker starts           exit code 2
└── EngineError         the run failed                                        exit code 1
    ├── WorkerLost      a worker's process ended or went silent
    ├── WorkerFailed    a worker's method raised
    ├── PeerTimeout     another process did not answer in time
    ├── PeerGone        a message could not be routed
    ├── ProtocolError   a message that this version does not understand
    ├── StageExited     an endless stage returned
    ├── StreamClosed    a stream was used after its end
    ├── EnvMismatch     an environment returned what its declared space forbids
    ├── EnvCannotRestore  an environment cannot save and restore its state
    └── (internal)      TooManyCalls, PoolEmpty, RowNotTaken, LedgerError: a bug of the engine
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Callable, Iterable
from typing import Any


class RlinfError(Exception):
    """Root of all errors of this package."""

    exit_code = 1


class Interrupted(RlinfError):
    """A signal asked the run to end."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(f"interrupted by {self.signal.name}")


class BadInput(RlinfError):
    """Input that cannot work: who found it, what is wrong, expected, got, and what to do."""

    exit_code = 2

    def __init__(
        self, who: str, what: str, *, expected: object = None, got: object = None, fix: str = ""
    ) -> None:
        self.who, self.what, self.expected, self.got, self.fix = who, what, expected, got, fix
        parts = [f"{who}: {what}"]
        if expected is not None:
            parts.append(f"expected {expected}")
        if got is not None:
            parts.append(f"got {got}")
        if fix:
            parts.append(fix)
        super().__init__("; ".join(parts))

    @classmethod
    def relayed(cls, message: str) -> BadInput:
        """The refusal of another process, whose message says everything already."""
        who, _, what = message.partition(": ")
        return cls(who, what)


class EngineError(RlinfError):
    """The run failed after it had started."""


class WorkerLost(EngineError):
    """A worker's process ended by itself or went silent."""

    def __init__(
        self,
        worker: str,
        *,
        stage: str,
        command: str,
        exit_code: int | None = None,
        silent_s: float = 0.0,
        stderr_tail: str = "",
    ) -> None:
        self.worker, self.stage, self.command = worker, stage, command
        self.exit_status, self.stderr_tail = exit_code, stderr_tail
        fate = f"was silent for {silent_s:.1f} s" if exit_code is None else describe_exit(exit_code)
        message = f"worker {worker} (stage {stage}) {fate} during {command}"
        if stderr_tail.strip():
            message += "; end of its stderr:\n" + _indent(stderr_tail)
        super().__init__(message)


class WorkerFailed(EngineError):
    """A worker's method raised; the remote traceback travels as a note."""

    def __init__(
        self,
        worker: str,
        *,
        stage: str,
        command: str,
        kind: str,
        message: str,
        traceback: str,
    ) -> None:
        self.worker, self.stage, self.command, self.kind = worker, stage, command, kind
        super().__init__(f"worker {worker} (stage {stage}) failed in {command}: {kind}: {message}")
        self.add_note("traceback in the worker:\n" + _indent(traceback))

    @classmethod
    def relayed(cls, message: str, traceback: str) -> WorkerFailed:
        """A failure as the process tells it that had called the worker."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.add_note("traceback in the caller:\n" + _indent(traceback))
        return error


class PeerTimeout(EngineError):
    """Another process did not answer within its deadline."""


class PeerGone(EngineError):
    """A message was addressed to a process that is not connected."""


class ProtocolError(EngineError):
    """A message that this version does not understand."""


class StageExited(EngineError):
    """A stage that must outlive the run returned while the run was going on."""


class StreamClosed(EngineError):
    """A stream was used after its end."""


class PlanReady(RlinfError):
    """Not a failure: what `plan` wanted to know is known, and the job need not go on."""

    def __init__(
        self, document: dict[str, Any], what_if: Callable[[int], list[dict[str, Any]]]
    ) -> None:
        super().__init__("the plan is ready")
        self.document, self.what_if = document, what_if
        """Plain values, and the same of other numbers of cores; see `execution.plan_report`."""


def describe_exit(exit_code: int) -> str:
    """`exited with code 3` or `was killed by SIGKILL`, with the usual cause where there is one."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    usual = {
        signal.SIGKILL: " (often: out of memory, or killed by hand)",
        signal.SIGSEGV: " (a crash in native code)",
    }
    try:
        name = signal.Signals(-exit_code)
    except ValueError:
        return f"was killed by signal {-exit_code}"
    return f"was killed by {name.name}{usual.get(name, '')}"


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """`did you mean 'a', 'b'?`, or an empty string where nothing known is near."""
    lower: dict[str, str] = {}
    for candidate in known:
        lower.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(name.lower(), lower, n=count, cutoff=0.6)
    return f"did you mean {', '.join(repr(lower[each]) for each in found)}?" if found else ""


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.rstrip().splitlines())
