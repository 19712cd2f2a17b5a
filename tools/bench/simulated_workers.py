"""Does the real engine take as long as the simulation says, when work only occupies devices?

Real processes, sockets and leases; workers hold simulated devices for modelled times. For several
loads every mode is pinned in one job, and its seconds of an iteration are compared with what the
formulas of `scheduling/live_costs.py` give and, for modes that it knows, with the discrete-event
simulation that `simulate_cluster.py` uses. The differences are the engine's own costs.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import emit, machine_to_itself
from rlinf_async.scheduling.live_costs import IterationTimes, LiveCosts, Sizes
from rlinf_async.scheduling.planner import evaluate
from rlinf_async.scheduling.plans import Flow, FlowCosts, Group, Plan
from rlinf_async.scheduling.simulation import SimulatedRun
from runs import run_ours

JOB = "tests/fixtures/scripts/simulated.py"
MODES = ("collocated", "hybrid", "disaggregated")
CELLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Seconds of one device."""

    cell_s: float
    train_s: float


LOADS = (
    Load(cell_s=0.08, train_s=0.12),
    Load(cell_s=0.02, train_s=0.24),
    Load(cell_s=0.12, train_s=0.04),
)


def measured(load: Load, iterations: int) -> dict[str, float]:
    """Mode -> seconds of an iteration in the real engine."""
    with tempfile.TemporaryDirectory(prefix="rlinf-simulated-") as folder:
        options = {
            "mode": "auto",
            "pins": ",".join(MODES),
            "iterations": iterations * len(MODES),
            "cells": CELLS,
            "cell-s": load.cell_s,
            "train-s": load.train_s,
            "devices": "0,1",
            "out": f"{folder}/times.json",
        }
        run_ours(JOB, options, rows=False)
        times = json.loads(Path(options["out"]).read_text())
    # The first few of a mode still belong to the one before.
    return {mode: (each[-1] - each[4]) / (len(each) - 5) for mode, each in times.items()}


def by_formula(load: Load) -> dict[str, float]:
    """Mode -> seconds, from exact costs."""
    costs = LiveCosts(env_steps=CELLS, max_lag=1)
    for cores in (1, 2):
        collect = load.cell_s * math.ceil(CELLS / cores)
        seconds = collect + load.train_s
        times = IterationTimes(seconds=seconds, collect_s=collect, train_s=load.train_s, both_s=0.0)
        costs.learn(Sizes(sharing="alternate", cores=cores, cores_beside=0), times)
    sizes = {
        "collocated": Sizes(sharing="alternate", cores=2, cores_beside=0),
        "hybrid": Sizes(sharing="yield", cores=2, cores_beside=1),
        "disaggregated": Sizes(sharing="own", cores=1, cores_beside=1),
    }
    return {mode: costs.predict(each).seconds for mode, each in sizes.items()}


def by_events(load: Load) -> dict[str, float]:
    """Mode -> seconds, by discrete events; hybrid mode, where cores change hands, is not in it."""
    flow = Flow(slots=CELLS, horizon=1, max_lag=1, renders=False)
    seconds: dict[tuple[str, str], Any] = {
        ("rollout", "cpu"): lambda units, devices: load.cell_s * math.ceil(units / int(devices)),
        ("train", "cpu"): lambda units, devices: load.train_s,
    }
    plans = {
        "collocated": Plan(groups=(Group(phases=("rollout", "train"), devices=2),)),
        "disaggregated": Plan(
            groups=(Group(phases=("rollout",), devices=1), Group(phases=("train",), devices=1))
        ),
    }
    costs = FlowCosts(seconds=seconds)
    return {
        mode: SimulatedRun(evaluate(plan, flow, costs), flow, costs, iterations=200).run().seconds
        for mode, plan in plans.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    args = parser.parse_args()
    rows = []
    with machine_to_itself():
        for load in LOADS:
            real = measured(load, 16 if args.quick else 60)
            for source, found in (("formula", by_formula(load)), ("events", by_events(load))):
                for mode, seconds in found.items():
                    rows.append(
                        {
                            "cell_s": load.cell_s,
                            "train_s": load.train_s,
                            "mode": mode,
                            "by": source,
                            "predicted_s": seconds,
                            "measured_s": real[mode],
                            "error": seconds / real[mode] - 1.0,
                        }
                    )
                    print(json.dumps(rows[-1]), flush=True)
    errors = [abs(row["error"]) for row in rows]
    emit("simulated_workers", worst_error=max(errors), median_error=median(errors), rows=rows)


if __name__ == "__main__":
    main()
