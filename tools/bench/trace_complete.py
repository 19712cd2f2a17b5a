"""Is a trace complete? A run is traced while it goes on, and its Perfetto file is read back.

Every segment that was trained on within the trace must have its whole path render -> rollout ->
train, in that order and with one flow number; and the times that each stage is charged with must
add up to the wall time that passed between two looks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import ROOT, emit, missing_peer
from processes import MarkedRun
from rlinf_async.tracing.client import Viewer, find_run
from runs import EXAMPLE

STATIONS = ["render", "rollout", "train"]
OPTIONS = ("--env", "HalfCheetah-v5", "--env-count", "32", "--cell", "8", "--horizon", "16")
LEARNING = ("--minibatch", "128", "--epochs", "2", "--iterations", "1000000", "--max-lag", "1")
SETTLE_S = 0.6
"""Processes tell of themselves twice a second."""


def spent(viewer: Viewer) -> dict[str, tuple[float, float]]:
    """By stage: the moment at which it was told of, and the seconds that it is charged with."""
    found = {}
    for reader in viewer.readers.values():
        for name, account in reader.state().get("stages", {}).items():
            charged_ns = sum(ns for *_, ns in account["spent"])
            found[name] = (account["now_ns"] * 1e-9, charged_ns * 1e-9)
    return found


def attribution_error(viewer: Viewer, seconds: float) -> dict[str, float]:
    """By stage: how far what it was charged with differs from the time that passed, as a part."""
    before = spent(viewer)
    viewer.watch(seconds)
    return {
        name: abs((charged_s - before[name][1]) / (at_s - before[name][0]) - 1.0)
        for name, (at_s, charged_s) in spent(viewer).items()
        if name in before and at_s > before[name][0]
    }


def flows(file: Path) -> dict[int, list[tuple[int, str]]]:
    """By flow number: the slices that carry it, in the order of time."""
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
    except ImportError:
        missing_peer("perfetto")
    trace = Trace()
    trace.ParseFromString(file.read_bytes())
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for packet in trace.packet:
        for number in packet.track_event.flow_ids:
            found[number].append((packet.timestamp, packet.track_event.name))
    return {number: sorted(steps) for number, steps in found.items()}


def measure(mode: str, seconds: float) -> dict[str, Any]:
    """Trace one run for so long."""
    options = (*OPTIONS, *LEARNING, "--mode", mode, "--hosts", "1")
    with MarkedRun(EXAMPLE, options) as run, tempfile.TemporaryDirectory() as folder:
        if not run.wait_iterations(3, 60.0):
            sys.exit(run.stderr)
        with Viewer.connect(find_run(None, run.temporary)) as viewer:
            viewer.watch(SETTLE_S)
            errors = attribution_error(viewer, seconds)
        file = Path(folder, "run.pftrace")
        command = [sys.executable, "-m", "rlinf_async", "trace", "--seconds", "60", "-o", str(file)]
        environment = {**os.environ, "TMPDIR": str(run.temporary)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        ways = [[name.partition(".")[0] for _, name in steps] for steps in flows(file).values()]
    trained = [way for way in ways if "train" in way]
    return {
        "mode": mode,
        "segments": len(trained),
        "complete_paths": sum(way == STATIONS for way in trained),
        "errors": errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 s of each run instead of 20 s")
    seconds = 3.0 if parser.parse_args().quick else 20.0
    found = [measure(mode, seconds) for mode in ("collocated", "disaggregated")]
    print(json.dumps(found, indent=2), file=sys.stderr)
    worst = max(error for each in found for error in each["errors"].values())
    emit(
        "trace_complete",
        segments=sum(each["segments"] for each in found),
        complete_paths=sum(each["complete_paths"] for each in found),
        attribution_error=worst,
        stages=sorted({name for each in found for name in each["errors"]}),
    )


if __name__ == "__main__":
    main()
