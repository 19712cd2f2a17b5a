"""A short-lived process that tries what the controller must not: to import and build things.

The controller imports no simulator and no torch; it asks `python -m rlinf_async.execution.probe`
and reads one line of JSON.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from rlinf_async.errors import BadInput, Interrupted, PeerTimeout, describe_exit
from rlinf_async.execution.roles import role_reference
from rlinf_async.hardware.child import settle_from_environment
from rlinf_async.hardware.process import HostProcess

PROBE_DEADLINE_S = 60.0


def probe_env(
    env: Any,
    name: str,
    script: Path | None,
    folder: Path,
    *,
    interpreter: str | None = None,
) -> dict[str, Any]:
    """What `env` (an id, or a description of a factory) is: its spaces and its path.

    `folder` is the run's private one: what a killed run leaves there, the next start removes.
    `interpreter` is the Python that the simulator lives in; None: this one.

    Blocks for the time that the environment takes to be built, before any worker exists; Ctrl-C
    ends it at once.

    Raises:
        BadInput: the environment is unknown or cannot be built.
        PeerTimeout: it takes longer than a minute.
    """
    about = f"environment {name!r}"
    return _ask(role_reference("probe"), env, script, folder, about, interpreter)


def probe_worker(reference: str, script: Path | None, folder: Path) -> None:
    """Raise BadInput unless hosts can import the worker class that `reference` names."""
    check = "rlinf_async.execution.user_workers:check_worker"
    _ask(check, reference, script, folder, f"worker {reference!r}", None)


def _ask(
    function: str,
    argument: Any,
    script: Path | None,
    parent: Path,
    about: str,
    interpreter: str | None,
) -> dict[str, Any]:
    """What `function(argument)` returns in a process of its own."""
    question = {"function": function, "argument": argument}
    question["script"] = str(script) if script else None
    with tempfile.TemporaryDirectory(prefix="probe-", dir=parent) as folder, _interruptible():
        answer_file = Path(folder) / "answer"
        arguments = ["-m", "rlinf_async.execution.probe", str(answer_file)]
        arguments.append(orjson.dumps(question).decode())
        process = HostProcess.spawn(
            "probe",
            arguments,
            interpreter=interpreter or sys.executable,
            cores=(),
            threads=1,
            environment={},
            log_folder=Path(folder),
        )
        try:
            exit_code = process.join(PROBE_DEADLINE_S)
        except PeerTimeout as cause:
            raise PeerTimeout(f"{about} took too long to try: {cause}") from None
        finally:
            process.close()
        if exit_code != 0 or not answer_file.exists():
            tail = process.stderr_tail()
            fate = f"the process that tried it {describe_exit(exit_code)}"
            raise BadInput(about, f"{fate}:\n{tail}" if tail else fate)
        answer: dict[str, Any] = orjson.loads(answer_file.read_bytes())
    if "refused" in answer:
        raise BadInput.relayed(answer["refused"])
    return answer


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise inside, where the loop that normally handles it is blocked."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def main() -> None:
    """Entry point of the probe process."""
    settle_from_environment()
    from rlinf_async.execution.references import resolve_name
    from rlinf_async.execution.script import load_script

    answer_file, question = Path(sys.argv[1]), orjson.loads(sys.argv[2])
    try:
        if question["script"]:
            load_script(question["script"])
        answer = resolve_name(question["function"], where="probe")(question["argument"])
    except BadInput as refusal:
        answer = {"refused": str(refusal)}
    draft = answer_file.with_suffix(".draft")
    draft.write_bytes(orjson.dumps(answer))
    draft.replace(answer_file)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
