"""SAC's throughput beside Stable-Baselines3's at the same update-to-data ratio.

HalfCheetah-v5, 8 environments, 64 steps a batch, one gradient update for each step, minibatch 256,
nets 256x256. Each round runs ours and the peer one after another on one torch thread each; ratios
are taken within a round, and the figures are medians over rounds. Imports, start-up, random steps
and the first updates are left out on both sides.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from common import BENCH, emit, machine_to_itself, median, missing_peer, run_json, tell_round
from runs import run_ours, steady

EXAMPLE = "examples/sac_mujoco.py"
ENV, ENVS, HORIZON, WARM_UP = "HalfCheetah-v5", 8, 8, 256
RANDOM_BATCHES = WARM_UP // (ENVS * HORIZON)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: one short round")
    parser.add_argument("--rounds", type=int, help="rounds (default 5, quick 1)")
    parser.add_argument("--batches", type=int, help="batches with updates (default 40, quick 8)")
    parser.add_argument("--mode", default="collocated", help="--mode of our runs")
    parser.add_argument("--max-lag", type=int, default=0, help="--max-lag of our runs")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.batches = args.batches or (8 if args.quick else 40)
    if args.batches < 4:
        parser.error("--batches: at least 4")
    return args


def one_round(args: argparse.Namespace, seed: int) -> dict[str, float]:
    options: dict[str, Any] = {
        "env": ENV,
        "env-count": ENVS,
        "horizon": HORIZON,
        "iterations": RANDOM_BATCHES + args.batches + 1,
        "warmup": WARM_UP,
        "max-lag": args.max_lag,
        "mode": args.mode,
        "hosts": 1,
        "seed": seed,
    }
    ours = run_ours(EXAMPLE, options)
    flags = ["--batches", str(args.batches), "--warmup", str(WARM_UP), "--seed", str(seed)]
    theirs = run_json([sys.executable, "-m", "peers.sb3_sac", *flags], cwd=BENCH)
    own = steady(ours.rows, warm_up=RANDOM_BATCHES + 1, drain=args.max_lag + 1)
    figures = {
        "ratio_vs_sb3": own.env_steps_per_s / theirs["env_steps_per_s"],
        "cpu_ratio": theirs["cpu_s_per_step"] / own.cpu_s_per_step,
        "env_steps_per_s": own.env_steps_per_s,
        "env_steps_per_s_sb3": theirs["env_steps_per_s"],
        "cpu_ms_per_step": own.cpu_s_per_step * 1e3,
        "cpu_ms_per_step_sb3": theirs["cpu_s_per_step"] * 1e3,
        "others_cores": ours.others_cores,
    }
    tell_round(seed, figures)
    return figures


def main() -> None:
    args = arguments()
    if importlib.util.find_spec("stable_baselines3") is None:
        missing_peer("stable-baselines3")
    with machine_to_itself():
        rounds = [one_round(args, seed) for seed in range(args.rounds)]
    emit(
        "off_policy_throughput",
        **{key: median(each[key] for each in rounds) for key in rounds[0]},
        n=len(rounds),
        batches=args.batches,
        mode=args.mode,
        max_lag=args.max_lag,
    )


if __name__ == "__main__":
    main()
