"""What do recording and viewers cost a run, and what does a span cost?

One serial run records in every other pair of iterations and does nothing of the kind in the others.
Meanwhile viewers come and go: none, one, five (niced, each reads all traces four times a second, as
`attach` does), and one that stalls. The cost is the CPU time of an iteration's environment steps
compared with iterations that neither record nor are looked at; its interval is a bootstrap's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, emit, median
from processes import MarkedRun
from rlinf_async.tracing import wire
from rlinf_async.tracing.client import find_run
from rlinf_async.tracing.recorder import Recorder

SCRIPT = Path(__file__).parent / "scripts" / "toggled_recording.py"
STATES = ("none", "one", "five", "stalled")
WATCHING = {"none": 0, "one": 1, "five": 5, "stalled": 0}
"""How many of the viewers are connected."""
VIEWER = """
import os, select, sys
from rlinf_async.tracing.client import Viewer, find_run
os.nice(10)
card = find_run(None)
viewer = None
while line := sys.stdin.readline():
    viewer = Viewer.connect(card, limit_s=20.0)
    print("here", flush=True)
    while not select.select([sys.stdin], [], [], 0.25)[0] and viewer.pump():
        viewer.capture(2.0)
    sys.stdin.readline()
    viewer.close()
    print("gone", flush=True)
"""
WARM_ITERATIONS = 20
DRAWS = 2000
LOOK_S = {True: 1.0, False: 4.0}
"""Seconds of one visit to a state, quick or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One iteration."""

    ended_s: float
    cpu_s: float
    recorded: bool


def span_ns() -> float:
    """Nanoseconds of one span: the best of many short runs, for other work only adds."""
    names = {"span": Recorder("bench", 1 << 16).span}
    best_s = min(timeit.repeat("with span('a', 3): pass", globals=names, number=300, repeat=2000))
    return best_s / 300 * 1e9


class Audience:
    """Five viewers that come and go, and one that stalls."""

    def __init__(self, run: MarkedRun) -> None:
        environment = {**os.environ, "TMPDIR": str(run.temporary)}
        self._socket = find_run(None, run.temporary).folder / wire.SOCKET
        self._viewers = [
            subprocess.Popen(
                [sys.executable, "-c", VIEWER],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(max(WATCHING.values()))
        ]

    @contextlib.contextmanager
    def watching(self, state: str) -> Iterator[None]:
        """So many of them look at the run inside the block."""
        now = self._viewers[: WATCHING[state]]
        self._tell(now)
        with contextlib.ExitStack() as held:
            if state == "stalled":
                stalled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                held.enter_context(stalled)
                stalled.connect(str(self._socket))
            yield
        self._tell(now)

    def _tell(self, viewers: list[subprocess.Popen[str]]) -> None:
        for viewer in viewers:
            assert viewer.stdin is not None
            viewer.stdin.write("\n")
            viewer.stdin.flush()
        for viewer in viewers:
            assert viewer.stdout is not None
            viewer.stdout.readline()

    def close(self) -> None:
        """End them."""
        for viewer in self._viewers:
            viewer.kill()
            viewer.communicate()


Rounds = list[dict[str, list[Row]]]


def measure(rounds: int, look_s: float) -> Rounds:
    """Each round visits every state once: its iterations, by state."""
    with tempfile.TemporaryDirectory(prefix="rlinf-bench-") as folder:
        file = Path(folder, "rows")
        with MarkedRun(SCRIPT, ("--rows", str(file), "--mode", "serial")) as run:
            if not run.wait_iterations(WARM_ITERATIONS, 60.0):
                sys.exit(run.stderr)
            audience = Audience(run)
            try:
                return [_round(audience, file, turn, look_s) for turn in range(rounds)]
            finally:
                audience.close()


def _round(audience: Audience, file: Path, turn: int, look_s: float) -> dict[str, list[Row]]:
    found = {}
    # Every other round goes backwards, so that no state is always measured first.
    for state in STATES if turn % 2 == 0 else STATES[::-1]:
        with audience.watching(state):
            began_s = time.monotonic()
            time.sleep(look_s)
            ended_s = time.monotonic()
        # The first one began before the viewers were there.
        found[state] = [r for r in read_rows(file) if began_s < r.ended_s < ended_s][1:]
    return found


def read_rows(file: Path) -> list[Row]:
    """The complete lines so far."""
    lines = file.read_text().rpartition("\n")[0].splitlines()
    parts = (line.split() for line in lines)
    return [Row(ended_s=float(at), cpu_s=float(cpu), recorded=on == "1") for at, cpu, on in parts]


def costs(rounds: Rounds) -> dict[str, dict[str, Any]]:
    """By state: how much more CPU time an iteration took, as a part, with its interval.

    Means, not medians: what a viewer costs falls on few iterations. Each round is compared with
    itself, and the median round counts, so that other work on the machine does little harm.
    """
    generator = random.Random(0)
    told = {}
    for state in STATES:
        ratios = []
        for each in rounds:
            base = [row.cpu_s for row in each["none"] if not row.recorded]
            mine = [row.cpu_s for row in each[state] if row.recorded]
            if base and mine:
                ratios.append(statistics.fmean(mine) / statistics.fmean(base) - 1.0)
        draws = sorted(median(generator.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
        told[state] = {
            "slowdown": median(ratios),
            "interval": [draws[DRAWS // 40], draws[-DRAWS // 40]],
            "rounds": len(ratios),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half a minute instead of 6 minutes")
    quick = parser.parse_args().quick
    span = span_ns()
    told = costs(measure(6 if quick else 20, LOOK_S[quick]))
    print(json.dumps(told, indent=2), file=sys.stderr)
    worst = max(each["slowdown"] for each in told.values())
    emit("trace_overhead", worst_slowdown=worst, span_ns=span, states=told)


if __name__ == "__main__":
    main()
