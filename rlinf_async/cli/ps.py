"""`python -m rlinf_async ps`: the runs of this user that go on now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rlinf_async.cli import exits
from rlinf_async.cli.line import duration
from rlinf_async.errors import BadInput

HELP = """\
usage: python -m rlinf_async ps [--json]

The runs of this user that go on now, the newest first: id, mode, iteration, environment steps a
second, age, state, script. `attach`, `trace` and `diagnose` take an id, the beginning of one, or
the run folder.

options:
  --json      one JSON object for each run, a line each
  -h, --help  this text"""

ANSWER_S = 0.5
"""A controller that does not answer for so long is shown as not answering."""
COLUMNS = ("id", "mode", "iteration", "steps/s", "age", "state", "script")


def command(arguments: Sequence[str]) -> int:
    """Print the list; exit code 0."""
    if any(given in ("-h", "--help") for given in arguments):
        print(HELP)
        return exits.OK
    if unknown := [given for given in arguments if given != "--json"]:
        raise BadInput("ps", f"unknown option {unknown[0]!r}", expected="--json")
    rows = _rows()
    if "--json" in arguments:
        import orjson

        for row in rows:
            print(orjson.dumps(row).decode())
        return exits.OK
    if not rows:
        print("no run of yours is going on", file=sys.stderr)
        return exits.OK
    print(_table([_cells(row) for row in rows]))
    return exits.OK


def _rows() -> list[dict[str, Any]]:
    from rlinf_async.tracing.client import each_viewer, live_runs

    return [
        {
            "id": card.id,
            "mode": card.mode,
            "age_s": card.age_s,
            "script": card.script,
            "run_dir": str(card.run_dir),
            "pid": card.pid,
            **(
                {"phase": "not answering"} if viewer is None else _progress(viewer.status["status"])
            ),
        }
        for card, viewer in each_viewer(live_runs(), limit_s=ANSWER_S)
    ]


def _progress(status: dict[str, Any]) -> dict[str, Any]:
    kept = ("phase", "iteration", "iterations", "env_steps_per_s")
    return {name: status[name] for name in kept}


def _cells(row: dict[str, Any]) -> list[str]:
    known = "iteration" in row
    return [
        row["id"],
        row["mode"],
        f"{row['iteration']}/{row['iterations']}" if known else "?",
        f"{row['env_steps_per_s']:,.0f}" if known else "?",
        duration(row["age_s"]),
        row["phase"],
        row["script"] or "",
    ]


def _table(rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [list(COLUMNS), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
