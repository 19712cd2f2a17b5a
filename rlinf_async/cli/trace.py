"""`python -m rlinf_async trace [RUN]`: the last seconds of a run, as a file for a trace viewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.cli import exits
from rlinf_async.errors import BadInput
from rlinf_async.tracing.client import Viewer, find_run
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.views.story import story

HELP = """\
usage: python -m rlinf_async trace [RUN] [--seconds S] [--wait] [-o FILE]

Writes what all processes of a run recorded: spans, waits, counters, and the way of each segment
from render to rollout to train. RUN is an id that `ps` shows, or a run folder; of a run that failed
the record of its last minute is read. Open the file at https://ui.perfetto.dev.

options:
  --seconds S  how much (default 10)
  --wait       record the next S seconds instead of writing the last ones
  --otlp URL   send the spans to an OpenTelemetry collector instead, such as
               http://localhost:4318/v1/traces
  -o FILE      NAME.pftrace for Perfetto, NAME.json for Chrome's format (default RUN.pftrace)
  -h, --help   this text"""

FULL_S = 60.0
"""About as much as the traces hold."""
MISSING = "pip install 'rlinf_async[otlp]'"
SUFFIXES = (".pftrace", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    run: str | None
    seconds: float
    wait: bool
    file: Path | None
    otlp: str | None


def command(arguments: Sequence[str]) -> int:
    """Write the file; exit code 0."""
    if any(given in ("-h", "--help") for given in arguments):
        print(HELP)
        return exits.OK
    asked = _parse(list(arguments))
    taken = _capture(asked)
    if asked.otlp is not None:
        return _send(taken, asked.otlp)
    file = asked.file or Path(f"{taken.run.get('id', 'run')}.pftrace")
    try:
        file.write_bytes(_encode(taken, file.suffix))
    except OSError as cause:
        raise BadInput("-o", f"cannot write {file}: {cause.strerror}") from cause
    spans = sum(len(each.of_kind("span")) for each in taken.processes)
    lost = sum(each.lost for each in taken.processes)
    print(
        f"{file}: {spans:,} spans of {len(taken.processes)} processes; open it at ui.perfetto.dev"
    )
    if lost and asked.seconds > FULL_S:
        print(f"{lost:,} older records had been overwritten")
    if told := story(taken):
        print(told)
    return exits.OK


def _send(taken: Capture, endpoint: str) -> int:
    try:
        from rlinf_async.tracing.views.otlp import send
    except ImportError as cause:
        raise BadInput("--otlp", "opentelemetry is not installed", fix=MISSING) from cause
    print(f"{send(taken, endpoint):,} spans sent to {endpoint}")
    return exits.OK


def capture_of(run: str | None, seconds: float, *, wait: bool = False) -> Capture:
    """The last (or next) `seconds` of a live run, or those of a failed run's flight record."""
    recorded = None if run is None else Path(run).expanduser() / "flight.bin"
    try:
        card = find_run(run)
    except BadInput:
        if recorded is None or not recorded.is_file():
            raise
        try:
            return Capture.load(recorded)
        except (OSError, ValueError) as cause:
            raise BadInput("run", str(cause)) from cause
    with Viewer.connect(card) as viewer:
        viewer.watch(seconds if wait else 0.0)
        return viewer.capture(seconds)


def _capture(asked: _Asked) -> Capture:
    return capture_of(asked.run, asked.seconds, wait=asked.wait)


def _encode(taken: Capture, suffix: str) -> bytes:
    if suffix == ".json":
        from rlinf_async.tracing.views.chrome import to_chrome

        return to_chrome(taken)
    from rlinf_async.tracing.views.perfetto import to_perfetto

    return to_perfetto(taken)


def _parse(arguments: list[str]) -> _Asked:
    run: str | None = None
    seconds, wait, file, otlp = 10.0, False, None, None
    while arguments:
        given = arguments.pop(0)
        if given == "--wait":
            wait = True
        elif given in ("-o", "--seconds", "--otlp"):
            if not arguments:
                raise BadInput("trace", f"{given} without a value")
            value = arguments.pop(0)
            if given == "-o":
                file = _file(value)
            elif given == "--otlp":
                otlp = _endpoint(value)
            else:
                seconds = _seconds(value)
        elif given.startswith("-") or run is not None:
            raise BadInput("trace", f"unknown argument {given!r}", fix="see trace --help")
        else:
            run = given
    return _Asked(run=run, seconds=seconds, wait=wait, file=file, otlp=otlp)


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds <= 3600.0:
        raise BadInput("--seconds", "no length of time", expected="0 to 3600", got=given)
    return seconds


def _endpoint(given: str) -> str:
    if not given.startswith(("http://", "https://")):
        raise BadInput("--otlp", "no address", expected="http://HOST:4318/v1/traces", got=given)
    return given


def _file(given: str) -> Path:
    file = Path(given).expanduser()
    if file.suffix not in SUFFIXES:
        raise BadInput("-o", "unknown kind of file", expected=" or ".join(SUFFIXES), got=given)
    return file
