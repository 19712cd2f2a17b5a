"""`python -m rlinf_async COMMAND`: finds the command and turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import rlinf_async
from rlinf_async.cli import exits
from rlinf_async.errors import BadInput, PeerGone, PeerTimeout, nearest

COMMANDS = {
    "run": ("rlinf_async.cli.run", "train what a script describes"),
    "eval": ("rlinf_async.cli.evaluate", "score a checkpoint on whole episodes"),
    "ps": ("rlinf_async.cli.ps", "the runs of yours that go on now"),
    "attach": ("rlinf_async.cli.attach", "look at a run that goes on"),
    "diagnose": ("rlinf_async.cli.diagnose", "what is wrong with a run: stuck, slow or sick"),
    "trace": ("rlinf_async.cli.trace", "the last seconds of a run as a file for Perfetto"),
    "plan": ("rlinf_async.cli.plan", "what the planner would choose for a script, and why"),
    "venvs": ("rlinf_async.cli.venvs", "interpreters of their own for robot suites"),
}
"""By name: the module whose `command(arguments) -> exit code` performs it, and its help."""


def main(arguments: Sequence[str]) -> int:
    """Perform one command line, without the program's name; return the exit code."""
    try:
        return _perform(list(arguments))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    except (PeerGone, PeerTimeout) as error:
        print(f"error: {error}", file=sys.stderr)
        return exits.FAILED
    except BrokenPipeError:
        # Whoever read has had enough (`| head`); what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.SIGNAL_BASE + signal.SIGPIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return exits.SIGNAL_BASE + signal.SIGINT


def _perform(arguments: list[str]) -> int:
    if not arguments:
        print(_help(), file=sys.stderr)
        return exits.BAD_INPUT
    name, *rest = arguments
    if name in ("-h", "--help", "help"):
        print(_help())
        return exits.OK
    if name in ("-V", "--version"):
        print(f"rlinf_async {rlinf_async.__version__}")
        return exits.OK
    if name not in COMMANDS:
        fix = nearest(name, [*COMMANDS, "--help", "--version"])
        if not fix and name.endswith(".py"):
            fix = f"did you mean `run {name}`?"
        raise BadInput("rlinf_async", f"no command {name!r}", expected=", ".join(COMMANDS), fix=fix)
    module = importlib.import_module(COMMANDS[name][0])
    return int(module.command(rest))


def _help() -> str:
    listing = "\n".join(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items())
    return f"""\
usage: python -m rlinf_async COMMAND [options]

Reinforcement learning of embodied policies: one async script drives worker processes.

commands:
{listing}

options:
  -h, --help     this text; `COMMAND --help` for a command's own
  -V, --version  the version

{exits.HELP}"""
