"""What a user reads when a run fails: the first cause first, everything else as its consequence."""

from __future__ import annotations

from pathlib import Path

from rlinf_async.errors import (
    BadInput,
    PeerGone,
    PeerTimeout,
    RlinfError,
    StageExited,
    StreamClosed,
)
from rlinf_async.execution.script import script_traceback

CONSEQUENCES = (StreamClosed, PeerGone, PeerTimeout, StageExited)
"""Errors that usually follow from another one when both are there."""


def leaves(error: BaseException) -> list[BaseException]:
    """The single errors of an exception group, in the order in which they happened."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def root_cause(error: BaseException) -> tuple[BaseException, list[BaseException]]:
    """The error to report first, and the others."""
    found = leaves(error)
    first = next((each for each in found if not isinstance(each, CONSEQUENCES)), found[0])
    return first, [each for each in found if each is not first]


def failure_text(error: BaseException, *, script: Path, logs: Path) -> str:
    """The message for a failed run, several lines."""
    first, others = root_cause(error)
    lines = [_in_full(first, script)]
    if others:
        lines.append("as a consequence:")
        lines.extend(f"  - {_in_short(each)}" for each in others)
    if not isinstance(first, BadInput):
        lines.append(f"logs: {logs}")
    return "\n".join(lines)


def _in_full(error: BaseException, script: Path) -> str:
    if isinstance(error, RlinfError):
        # The engine's errors carry their evidence; a traceback through the engine adds none.
        return "\n".join([f"error: {error}", *getattr(error, "__notes__", ())])
    return f"error: the script failed\n{script_traceback(error, script)}"


def _in_short(error: BaseException) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
