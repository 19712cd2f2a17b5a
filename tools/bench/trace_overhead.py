"""What do recording and viewers cost a run, and what does a span cost?

One serial run records in the outer two of every four iterations and does nothing of the kind in
the inner two. Meanwhile viewers come and go in short visits (one; five, niced, each reads all
traces four times a second as `attach` does; one that stalls), each between two visits of nobody.
What is compared is the CPU time of an iteration's environment steps, in three parts:

    recording  each four iterations with themselves
    viewers    the median iteration of a visit with those of nobody before and after it
    statuses   iterations in which one was made for viewers with the others of that visit

A round visits every state once and yields one figure for each; the middle half of the rounds is
averaged, and the interval is a bootstrap's over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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

from common import ROOT, emit
from processes import MarkedRun
from rlinf_async.tracing import wire
from rlinf_async.tracing.client import find_run
from rlinf_async.tracing.recorder import Recorder

SCRIPT = Path(__file__).parent / "scripts" / "toggled_recording.py"
STATES = ("one", "five", "stalled")
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
BLOCK = 4
"""Iterations: recording is on, off, off and on in them."""
DRAWS = 2000
LOOK_S = 0.8
"""Seconds of one visit."""
ROUNDS = {True: 4, False: 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One iteration."""

    ended_s: float
    cpu_s: float
    recorded: bool
    statuses: int = 0
    """Made for viewers meanwhile."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The iterations that began and ended while a state lasted."""

    state: str
    rows: list[Row]


Rounds = list[list[Visit]]


def measure(rounds: int, look_s: float) -> Rounds:
    """The visits of each round; it begins and ends with nobody looking."""
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


def _round(audience: Audience, file: Path, turn: int, look_s: float) -> list[Visit]:
    # Every other round goes backwards, so that no state is always measured first.
    states = STATES if turn % 2 == 0 else STATES[::-1]
    visits = [_visit(audience, file, "none", look_s)]
    for state in states:
        visits.append(_visit(audience, file, state, look_s))
        visits.append(_visit(audience, file, "none", look_s))
    return visits


def _visit(audience: Audience, file: Path, state: str, look_s: float) -> Visit:
    with audience.watching(state):
        began_s = time.monotonic()
        time.sleep(look_s)
        ended_s = time.monotonic()
    # The first iteration began before the viewers were there.
    rows = [row for row in read_rows(file) if began_s < row.ended_s < ended_s][1:]
    return Visit(state=state, rows=rows)


def read_rows(file: Path) -> list[Row]:
    """The complete lines so far."""
    lines = file.read_text().rpartition("\n")[0].splitlines()
    return [
        Row(ended_s=float(at), cpu_s=float(cpu), recorded=on == "1", statuses=int(statuses))
        for at, cpu, on, statuses in (line.split() for line in lines)
    ]


def recording_cost(visits: list[Visit]) -> float:
    """The part that recording adds, from the blocks of all visits of a round."""
    ratios = []
    for visit in visits:
        for at in range(len(visit.rows) - BLOCK + 1):
            block = visit.rows[at : at + BLOCK]
            kinds = [row.recorded for row in block]
            if kinds == [True, False, False, True] and not any(row.statuses for row in block):
                on = block[0].cpu_s + block[3].cpu_s
                ratios.append(on / (block[1].cpu_s + block[2].cpu_s) - 1.0)
    return middle_mean(ratios)


def viewers_cost(visits: list[Visit], state: str) -> float:
    """The part that viewers add to every iteration, by their reading: visit against neighbours."""
    ratios = [
        _typical_s(mine) / ((_typical_s(before) + _typical_s(after)) / 2) - 1.0
        for before, mine, after in zip(visits, visits[1:], visits[2:], strict=False)
        if mine.state == state
    ]
    return statistics.fmean(ratios)


def statuses_cost(visits: list[Visit], state: str) -> float:
    """The part that making and sending statuses adds, of all CPU time in the visits of a state."""
    extra_s = typical_s = 0.0
    for visit in visits:
        if visit.state == state:
            mine = _typical_s(visit)
            extra_s += sum(row.cpu_s - mine for row in visit.rows if row.statuses)
            typical_s += mine * len(visit.rows)
    return extra_s / typical_s


def _typical_s(visit: Visit) -> float:
    """Median CPU seconds of an iteration without statuses; on and off weigh the same."""
    both = (
        [row.cpu_s for row in visit.rows if row.recorded is on and not row.statuses]
        for on in (True, False)
    )
    return statistics.fmean(statistics.median(values) for values in both if values)


def middle_mean(values: list[float]) -> float:
    """The mean of the middle half: other work on the machine makes the rest."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def costs(rounds: Rounds) -> dict[str, dict[str, Any]]:
    """By state: how much more CPU time an iteration took, as a part, with its interval."""
    generator = random.Random(0)
    recording = [recording_cost(visits) for visits in rounds]
    told = {}
    for state in ("none", *STATES):
        viewers = [0.0 if state == "none" else viewers_cost(v, state) for v in rounds]
        statuses = [statuses_cost(v, state) for v in rounds]
        parts = zip(recording, viewers, statuses, strict=True)
        whole = [math.prod(1.0 + part for part in each) - 1.0 for each in parts]
        draws = sorted(middle_mean(generator.choices(whole, k=len(whole))) for _ in range(DRAWS))
        told[state] = {
            "slowdown": middle_mean(whole),
            "interval": [draws[DRAWS // 40], draws[-DRAWS // 40]],
            "recording": middle_mean(recording),
            "viewers": middle_mean(viewers),
            "statuses": middle_mean(statuses),
            "rounds": len(whole),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute instead of 9")
    quick = parser.parse_args().quick
    span = span_ns()
    rounds = measure(ROUNDS[quick], LOOK_S)
    told = costs(rounds)
    print(json.dumps(told, indent=2), file=sys.stderr)
    worst = max(each["slowdown"] for each in told.values())
    iterations = sum(len(visit.rows) for visits in rounds for visit in visits)
    emit(
        "trace_overhead",
        worst_slowdown=worst,
        span_ns=span,
        states=told,
        iterations=iterations,
    )


if __name__ == "__main__":
    main()
