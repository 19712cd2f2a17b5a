"""Simulated: which mode is fastest on clusters of 8 to 1,024 devices, and does the planner find it?

The real planner, ledger and leases against simulated devices whose times follow a profile; discrete
events, deterministic, no clock. For each workload the best plan of every mode is tuned (all counts
and depths), simulated with times that vary, and compared with what the planner chooses.

`flat_pipelining_gain` is the time of a whole iteration of the best three-way disaggregated plan
with one call in flight over the best hybrid plan with two, on 8 devices of the flat profile, where
training takes as long as collecting and moving data costs nothing.

The controller handles a message there and back for each cell of 16 slots, each receiver of weights
and each phase; its share of a core at 1,024 devices says where a single one would saturate.

A simulation is no measurement: it shows what follows from a profile, and no more.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from cluster_scenarios import ablations, controller_message_s, recoveries
from common import emit
from rlinf_async.scheduling.planner import Candidate, Decision, choose
from rlinf_async.scheduling.plans import Flow, FlowCosts
from rlinf_async.scheduling.profiles import PROFILES, Links, Profile
from rlinf_async.scheduling.rescoring import choose_with_variation
from rlinf_async.scheduling.simulation import SimulatedRun

MODES = ("collocated", "disaggregated", "hybrid")
CELL = 16
"""Slots of a cell, the unit that the controller hears of."""
LOST = 0.01
"""Auto loses where the best fixed mode is faster by more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload on one cluster."""

    profile: Profile
    devices: int
    max_lag: int
    strong: bool = False
    """As much work as 8 devices have, however many there are."""
    variation: float = 1.0
    """Times the profile's."""

    @property
    def name(self) -> str:
        """For tables."""
        scaling = " strong" if self.strong else ""
        return f"{self.profile.name} {self.devices} devices lag {self.max_lag}{scaling}"

    def flow(self) -> Flow:
        """The sizes of an iteration."""
        strong = 8 if self.strong else None
        return self.profile.flow(self.devices, self.max_lag, strong=strong)

    def spread(self) -> dict[str, float]:
        """Coefficients of variation."""
        return {phase: self.variation * v for phase, v in self.profile.variation.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: fewer cases and seeds"
    )
    return parser.parse_args()


def cases(quick: bool) -> list[Case]:
    """Every workload, small and large; the full list adds factors."""
    sizes, lags = ((8, 1024), (0, 1)) if quick else ((8, 32, 64, 256, 1024), (0, 1, 2, 4))
    found = [
        Case(profile=profile, devices=devices, max_lag=lag)
        for profile in PROFILES.values()
        for devices in sizes
        for lag in lags
    ]
    if not quick:
        for profile in PROFILES.values():
            found += [Case(profile=profile, devices=64, max_lag=1, strong=True)]
            found += [
                Case(profile=profile, devices=64, max_lag=1, variation=times)
                for times in (0.0, 2.0)
            ]
    return found


def simulated(
    candidate: Candidate, flow: Flow, costs: FlowCosts, case: Case, seeds: int
) -> list[Any]:
    """Outcomes of several seeds."""
    return [
        SimulatedRun(
            candidate, flow, costs, iterations=8, variation=case.spread(), seed=100 + seed
        ).run()
        for seed in range(seeds)
    ]


def tuned(decision: Decision) -> dict[str, Candidate]:
    """The best plan of every mode, by its period."""
    best: dict[str, Candidate] = {}
    for each in decision.candidates:
        if not each.refused:
            best.setdefault(each.plan.mode, each)
    return best


def play(case: Case, seeds: int, message_s: float) -> dict[str, Any]:
    """Every mode and auto in one case."""
    flow = case.flow()
    costs = case.profile.costs(flow, case.devices, Links())
    devices = {"gpu": case.devices}
    decision, _ = choose_with_variation(flow, costs, devices, case.spread())
    found: dict[str, Any] = {"case": case.name, "chosen": decision.chosen.plan.describe()}
    outcomes = {
        mode: simulated(candidate, flow, costs, case, seeds)
        for mode, candidate in tuned(choose(flow, costs, devices)).items()
    }
    outcomes["auto"] = simulated(decision.chosen, flow, costs, case, seeds)
    for mode, runs in outcomes.items():
        seconds = [outcome.seconds for outcome in runs]
        found[mode] = mean(seconds)
        if seeds > 1:
            found[f"{mode}_95"] = 1.96 * stdev(seconds) / seeds**0.5
    fixed = {mode: found[mode] for mode in MODES if mode in found}
    found["best"] = min(fixed, key=lambda mode: fixed[mode])
    found["auto_over_best"] = fixed[found["best"]] / found["auto"]
    found["best_over_worst"] = max(fixed.values()) / min(fixed.values())
    found["controller_share"] = message_s * controller_messages(flow, case) / found["auto"]
    return found


def controller_messages(flow: Flow, case: Case) -> int:
    """Of one iteration."""
    return 2 * (math.ceil(flow.slots / CELL) + case.devices + len(flow.after))


def flat_pipelining_gain() -> float:
    """As the module says."""
    profile = PROFILES["flat"]
    flow = profile.flow(8)
    found = choose(flow, profile.costs(flow, 8), {"gpu": 8}).candidates
    apart = min(
        each.seconds
        for each in found
        if each.plan.mode == "disaggregated" and len(each.plan.groups) == 3 and each.plan.depth == 1
    )
    together = min(
        each.seconds for each in found if each.plan.mode == "hybrid" and each.plan.depth == 2
    )
    return apart / together


def planning_ms(devices: int, repeats: int = 5) -> float:
    """Median time to plan, over workloads and repeats."""
    times = []
    for profile in PROFILES.values():
        flow = profile.flow(devices, 1)
        costs = profile.costs(flow, devices, Links())
        for _ in range(repeats):
            began = time.perf_counter()
            choose(flow, costs, {"gpu": devices})
            times.append(1000 * (time.perf_counter() - began))
    return median(times)


def report(rows: list[dict[str, Any]]) -> None:
    """The table of all cases, and where auto loses."""
    print(
        f"simulated seconds of an iteration\n{'case':34}", *(f"{m:>14}" for m in (*MODES, "auto"))
    )
    for row in rows:
        shown = [f"{row[m]:14.1f}" if m in row else f"{'-':>14}" for m in (*MODES, "auto")]
        print(f"{row['case']:34}", *shown, f"  best {row['best']}; chosen {row['chosen']}")
    lost = [row for row in rows if row["auto_over_best"] < 1.0 - LOST]
    print(f"auto loses in {len(lost)} of {len(rows)} cases")
    for row in lost:
        print(f"  {row['case']}: {row['best']} is {1 / row['auto_over_best'] - 1:.1%} faster")


def main() -> None:
    args = arguments()
    for profile in PROFILES.values():
        ranges = {phase: f"{min(p)}-{max(p)}" for phase, p in profile.measured.items()}
        print(f"profile {profile.name}: {profile.origin}; units fitted {ranges}")
    seeds, message_s = (1, controller_message_s()) if args.quick else (20, controller_message_s())
    rows = [play(case, seeds, message_s) for case in cases(args.quick)]
    report(rows)
    best: dict[str, dict[str, str]] = {}
    for row in rows:
        name, _, rest = row["case"].partition(" ")
        best.setdefault(name, {})[rest] = row["best"]
    largest = max(row["controller_share"] for row in rows if " 1024 " in row["case"])
    extra = {} if args.quick else {"ablations": ablations(), "recoveries": recoveries()}
    emit(
        "simulate_cluster",
        simulated=True,
        planning_ms_1024=planning_ms(1024),
        flat_pipelining_gain=flat_pipelining_gain(),
        best_over_worst=max(row["best_over_worst"] for row in rows),
        best_mode_per_workload=best,
        auto_over_best_worst=min(row["auto_over_best"] for row in rows),
        auto_loses=[row["case"] for row in rows if row["auto_over_best"] < 1.0 - LOST],
        controller_message_us=message_s * 1e6,
        controller_share_1024=largest,
        controller_saturates_at_devices=round(1024 / largest),
        **extra,
    )


if __name__ == "__main__":
    main()
