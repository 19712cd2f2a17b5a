"""How a command that has a run folder ends when it fails: its exit code and what the user reads."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rlinf_async.cli import exits
from rlinf_async.cli.report import failure_text, leaves, root_cause
from rlinf_async.errors import BadInput, Interrupted
from rlinf_async.execution.run_folder import RunFolder


def exit_code(error: BaseException) -> int:
    """The exit code that `error` stands for."""
    for each in leaves(error):
        if isinstance(each, KeyboardInterrupt):
            return exits.SIGNAL_BASE + signal.SIGINT
        if isinstance(each, Interrupted):
            return exits.SIGNAL_BASE + int(each.signal)
    return exits.BAD_INPUT if isinstance(root_cause(error)[0], BadInput) else exits.FAILED


def tell_failure(error: BaseException, code: int, folder: RunFolder, script: Path) -> None:
    """Print what happened; of refused input no folder is left."""
    if code > exits.SIGNAL_BASE:
        name = signal.Signals(code - exits.SIGNAL_BASE).name
        print(f"interrupted by {name}; what was written is in {folder.path}", file=sys.stderr)
        return
    print(failure_text(error, script=script, logs=folder.logs), file=sys.stderr)
    if code == exits.BAD_INPUT:
        folder.discard()
