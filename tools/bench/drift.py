"""Does a run notice that its simulator has become five times slower, and do what is best then?

One live job whose planner has chosen for a light simulator. It is held for a while on constant
load, where nothing should change; then every step costs five times as much. Counted are the
iterations until the plan changes. Afterwards every mode is pinned in turn, `auto` among them, to
see how near to the best the new plan is.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from statistics import median

from common import emit, machine_to_itself
from modes import JOB, rates_of
from runs import run_ours


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument(
        "--constant", type=int, help="iterations on constant load (1000, quick 150)"
    )
    parser.add_argument("--rounds", type=int, help="blocks of each mode (default 8, quick 2)")
    args = parser.parse_args()
    args.constant = args.constant or (150 if args.quick else 1000)
    args.rounds = args.rounds or (2 if args.quick else 8)
    return args


def main() -> None:
    args = arguments()
    with machine_to_itself(), tempfile.TemporaryDirectory(prefix="rlinf-drift-") as folder:
        out = f"{folder}/blocks.jsonl"
        options = {
            "mode": "auto",
            "workload": "slowing",
            "slow-after": args.constant,
            "rounds": args.rounds,
            "out": out,
        }
        plans = run_ours(JOB, options, keep=("plans.jsonl",)).kept["plans.jsonl"].splitlines()
        first, changed, *blocks = [json.loads(line) for line in Path(out).read_text().splitlines()]
    rates = rates_of(blocks)
    speeds = {mode: math.exp(median(each)) for mode, each in rates.items()}
    best = max(rate for mode, rate in speeds.items() if mode != "auto")
    emit(
        "drift",
        iterations_to_replan=changed["iterations"],
        rate_over_best_after=speeds["auto"] / best,
        switches_on_constant_load=changed["switches"],
        constant_iterations=args.constant,
        plan_before=first["settled"],
        plan_after=changed["replanned"],
        iterations_per_s=speeds,
        decisions=[json.loads(line)["reason"] for line in plans],
    )


if __name__ == "__main__":
    main()
