"""Is `auto` as fast as the best mode that one could have chosen by hand?

For each workload one live job: its planner chooses undisturbed, and then every mode is pinned for
whole iterations in turn, `auto` among them, round after round. The best fixed mode is picked on
half of the rounds and scored on the others, both ways: the luckiest of several is not the best.

    choice     the mode that auto chose over the best, as pinned blocks measure them; 1 if the same
    adaptive   auto over the same mode pinned, in the same round

`worst_auto_over_best` is the least choice x adaptive over the workloads; its upper end is that of a
95 % bootstrap over rounds. Serial runs in a job of its own, before and after. Prediction errors are
those of modes that had not run yet when the planner predicted them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import emit, machine_to_itself
from runs import run_ours, steady

JOB = "tools/bench/scripts/modes_job.py"
WORKLOADS = ("state", "heavy", "pixels", "python")
BOOTSTRAP = 2000

Rates = dict[str, list[float]]
"""Mode -> log of iterations a second, by round."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: 2 workloads, 4 rounds of 1 s"
    )
    parser.add_argument("--rounds", type=int, help="default 12, quick 4")
    parser.add_argument("--workloads", default="", help=f"some of {','.join(WORKLOADS)}")
    parser.add_argument("--max-lag", type=int, default=1)
    args = parser.parse_args()
    args.rounds = args.rounds or (4 if args.quick else 12)
    args.block_s = 1.0 if args.quick else 3.0
    listed = args.workloads.split(",") if args.workloads else WORKLOADS[: 2 if args.quick else 4]
    if unknown := set(listed) - set(WORKLOADS):
        parser.error(f"--workloads: unknown {', '.join(sorted(unknown))}")
    args.workloads = listed
    return args


def live_job(workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """Blocks and first plan of one job."""
    with tempfile.TemporaryDirectory(prefix="rlinf-modes-") as folder:
        options = {
            "mode": "auto",
            "workload": workload,
            "rounds": args.rounds,
            "block-s": args.block_s,
            "max-lag": args.max_lag,
            "out": f"{folder}/blocks.jsonl",
        }
        finished = run_ours(JOB, options, keep=("plans.jsonl",))
        blocks = [json.loads(line) for line in Path(options["out"]).read_text().splitlines()]
    plans = [json.loads(line) for line in finished.kept["plans.jsonl"].splitlines()]
    steps = finished.rows[-1]["env_steps"] / finished.rows[-1]["iteration"]
    return {"settled": blocks[0], "blocks": blocks[1:], "plan": plans[0], "steps": steps}


def serial_rate(workload: str, args: argparse.Namespace) -> float:
    """Environment steps a second of the same work in one process."""
    options = {"mode": "serial", "workload": workload, "max-lag": args.max_lag}
    options["serial-iterations"] = 12 if args.quick else 40
    rows = run_ours(JOB, options).rows
    return steady(rows, warm_up=3, drain=args.max_lag + 1).env_steps_per_s


def rates_of(blocks: list[dict[str, Any]]) -> Rates:
    """By mode, a round each; of a block measured twice the last counts."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for block in blocks:
        if block["kept"]:
            found[block["mode"]][block["round"]] = -math.log(block["iteration_s"])
    return {mode: [rounds[n] for n in sorted(rounds)] for mode, rounds in found.items()}


def auto_over_best(rates: Rates, chosen: str, rounds: list[int]) -> float:
    """choice x adaptive over some rounds, the best picked on halves of them."""
    fixed = [mode for mode in rates if mode != "auto"]
    halves = rounds[::2], rounds[1::2]
    choices = []
    for pick, score in (halves, halves[::-1]):
        best = max(fixed, key=lambda mode: mean(rates[mode][n] for n in pick))
        choices.append(mean(rates[chosen][n] - rates[best][n] for n in score))
    adaptive = median(rates["auto"][n] - rates[chosen][n] for n in rounds)
    return math.exp(mean(choices) + adaptive)


def interval(rates: Rates, chosen: str, count: int) -> tuple[float, float]:
    """95 % of the ratio over resampled rounds."""
    rng = random.Random(0)
    found = sorted(
        auto_over_best(rates, chosen, [rng.randrange(count) for _ in range(count)])
        for _ in range(BOOTSTRAP)
    )
    return found[BOOTSTRAP // 40], found[-BOOTSTRAP // 40]


def errors(job: dict[str, Any], rates: Rates) -> dict[str, float]:
    """Mode -> predicted over measured seconds, less 1, of modes predicted before they ran."""
    predicted = job["plan"]["predicted_s"]
    unseen = [mode for mode in predicted if mode != "collocated" and mode in rates]
    return {mode: predicted[mode][0] * math.exp(median(rates[mode])) - 1.0 for mode in unseen}


def errors_at_equal_speed(job: dict[str, Any], rates: Rates) -> dict[str, float]:
    """The same, were the machine as fast as in the warm-up: collocated was measured in both."""
    warm_up_s = job["plan"]["measured_s"]["collocated"]
    slower = warm_up_s * math.exp(median(rates["collocated"]))
    return {mode: (1.0 + wrong) / slower - 1.0 for mode, wrong in errors(job, rates).items()}


def measured(workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one workload."""
    # Quick runs have no time for more than one job of its own.
    serial = (
        [serial_rate(workload, args)] if workload == args.workloads[0] or not args.quick else []
    )
    job = live_job(workload, args)
    if not args.quick:
        serial.append(serial_rate(workload, args))
    rates, chosen = rates_of(job["blocks"]), job["settled"]["settled"]
    count = min(map(len, rates.values()))
    low, high = interval(rates, chosen, count)
    per_s = {mode: job["steps"] * math.exp(median(each)) for mode, each in rates.items()}
    repeated = sum(not block["kept"] for block in job["blocks"])
    figures = {
        "env_steps_per_s": per_s,
        "chosen": chosen,
        "auto_over_best": auto_over_best(rates, chosen, list(range(count))),
        "lower": low,
        "upper": high,
        "auto_over_serial": [per_s["auto"] / each for each in serial],
        "prediction_errors": errors(job, rates),
        "prediction_errors_at_equal_speed": errors_at_equal_speed(job, rates),
        "predicted_s": job["plan"]["predicted_s"],
        "start_up_regret_s": job["settled"]["settled_s"],
        "blocks_repeated": repeated,
    }
    print(f"{workload}: {json.dumps(figures)}", flush=True)
    return figures


def pooled(workloads: dict[str, Any], key: str) -> list[float]:
    """Sizes of all errors, ascending."""
    return sorted(abs(wrong) for each in workloads.values() for wrong in each[key].values())


def p90(ordered: list[float]) -> float:
    """The value that nine tenths do not exceed."""
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def main() -> None:
    args = arguments()
    with machine_to_itself():
        workloads = {name: measured(name, args) for name in args.workloads}
    wrong = pooled(workloads, "prediction_errors")
    fair = pooled(workloads, "prediction_errors_at_equal_speed")
    over_serial = [ratio for each in workloads.values() for ratio in each["auto_over_serial"]]
    worst = min(workloads.values(), key=lambda each: each["auto_over_best"])
    emit(
        "modes",
        worst_auto_over_best=worst["auto_over_best"],
        worst_auto_over_best_lower=min(each["lower"] for each in workloads.values()),
        worst_auto_over_best_upper=worst["upper"],
        worst_auto_over_serial=min(over_serial),
        prediction_error_median=median(wrong),
        prediction_error_p90=p90(wrong),
        prediction_error_median_at_equal_speed=median(fair),
        prediction_error_p90_at_equal_speed=p90(fair),
        workloads=workloads,
        rounds=args.rounds,
    )
    if worst["upper"] < 0.95:
        sys.exit("auto is slower than the best mode by more than 5 %")


if __name__ == "__main__":
    main()
