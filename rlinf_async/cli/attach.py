"""`python -m rlinf_async attach [RUN]`: look at a run that goes on; it does not notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_async.cli import exits
from rlinf_async.cli import trace as trace_command
from rlinf_async.errors import BadInput
from rlinf_async.tracing.client import Viewer, find_run

HELP = """\
usage: python -m rlinf_async attach [RUN] [options]

A live view of a run in the terminal: its processes with a timeline each, where the time of every
stage goes, streams, speed, lag and log. Keys are shown at the foot. Leaving it, or killing it,
changes nothing for the run. RUN is an id that `ps` shows, the beginning of one, or the run folder.

options:
  --web [PORT]        serve the view as a page on loopback, and print its address
  --metrics [PORT]    serve metrics for Prometheus on loopback, and print their address
  --record S FILE     write the next S seconds to FILE (.pftrace or .json) and leave
  --screenshot FILE   write one picture of the view (.svg) and leave
  -h, --help          this text"""

SCREEN = (150, 44)
"""Columns and lines of a picture."""
FRAMES = 6
NICENESS = 10
MISSING = "pip install 'rlinf_async[trace]'"


def command(arguments: Sequence[str]) -> int:
    """Show the run until the user leaves or it ends; exit code 0."""
    if any(given in ("-h", "--help") for given in arguments):
        print(HELP)
        return exits.OK
    rest, picture, served = list(arguments), None, ""
    if "--record" in rest:
        return _record(rest)
    if "--screenshot" in rest:
        at = rest.index("--screenshot")
        picture = _picture(rest[at + 1 : at + 2])
        del rest[at : at + 2]
    port = 0
    for option in ("--web", "--metrics"):
        if option in rest:
            served, port = option, _port(rest, option)
    if len(rest) > 1 or any(given.startswith("-") for given in rest):
        raise BadInput("attach", f"unknown argument {rest[-1]!r}", fix="see attach --help")
    if served:
        return _serve(rest[0] if rest else None, served, port)
    return _show(rest[0] if rest else None, picture)


def _show(run: str | None, picture: Path | None) -> int:
    card = find_run(run)
    if picture is None and not sys.stdout.isatty():
        raise BadInput("attach", "this is no terminal", fix="use `diagnose`, `trace` or --record")
    with Viewer.connect(card) as viewer:
        try:
            from rlinf_async.tracing.views.terminal import RunView
        except ImportError as cause:
            raise BadInput("attach", "textual is not installed", fix=MISSING) from cause
        # From the first frame on the run comes first, whatever it needs.
        view = RunView(viewer, drawn=lambda: os.nice(NICENESS))
        if picture is None:
            view.run()
            return exits.OK
        picture.write_text(asyncio.run(_drawn(view)))
    print(picture)
    return exits.OK


def _serve(run: str | None, option: str, port: int) -> int:
    from rlinf_async.tracing.views.web import PageServer

    with Viewer.connect(find_run(run)) as viewer:
        try:
            server = PageServer(viewer, port)
        except OSError as cause:
            raise BadInput(option, f"port {port} cannot be used: {cause.strerror}") from cause
        what = "metrics" if option == "--metrics" else ""
        print(f"{server.address}{what}  (Ctrl-C ends it; the run goes on)", flush=True)
        os.nice(NICENESS)
        with server, contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return exits.OK


def _port(rest: list[str], option: str) -> int:
    """Take `option` and the number behind it out of `rest`; 0: any free port."""
    at = rest.index(option)
    given = rest[at + 1] if len(rest) > at + 1 and rest[at + 1].isdigit() else None
    del rest[at : at + (1 if given is None else 2)]
    if given is not None and not 0 < int(given) < 65536:
        raise BadInput(option, "no port", expected="1 to 65535", got=given)
    return 0 if given is None else int(given)


async def _drawn(view: Any) -> str:
    """The view after a few frames, as SVG, without a terminal."""
    async with view.run_test(size=SCREEN) as pilot:
        while view.frames < FRAMES:
            await pilot.pause(0.1)
        return str(view.export_screenshot())


def _picture(given: Sequence[str]) -> Path:
    if not given or Path(given[0]).suffix != ".svg":
        raise BadInput(
            "--screenshot", "no file", expected="FILE.svg", got=given[0] if given else ""
        )
    return Path(given[0])


def _record(rest: list[str]) -> int:
    at = rest.index("--record")
    if len(rest) < at + 3:
        raise BadInput("--record", "too little", expected="--record SECONDS FILE")
    seconds, file = rest[at + 1].removesuffix("s"), rest[at + 2]
    del rest[at : at + 3]
    return trace_command.command([*rest, "--wait", "--seconds", seconds, "-o", file])
