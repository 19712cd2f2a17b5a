"""Training throughput beside Stable-Baselines3's PPO: environment steps per second, and their CPU.

HalfCheetah-v5, 64 environments, 2,048 steps a batch, 10 epochs, minibatch 256, MLPs 64x64 tanh.
Each round runs ours with max_lag 0, ours with max_lag 1, and the peer, one after another; ratios
are taken within a round, and the figures are medians over rounds. Imports, start-up and the first
iterations are left out on both sides.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from common import BENCH, Meter, emit, machine_to_itself, median, missing_peer, run_json, tell_round
from runs import EXAMPLE, FinishedRun, run_ours, steady

ENV, ENVS, HORIZON = "HalfCheetah-v5", 64, 32
BATCH = ENVS * HORIZON
WARM_UP = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: short runs, 2 rounds")
    parser.add_argument("--rounds", type=int, help="rounds (default 5, quick 2)")
    parser.add_argument(
        "--iterations", type=int, help="of each run of ours (default 100, quick 32)"
    )
    parser.add_argument("--mode-lag0", default="collocated", help="--mode of the runs without lag")
    parser.add_argument("--mode-lag1", default="disaggregated", help="--mode of the runs with lag")
    args = parser.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.iterations = args.iterations or (32 if args.quick else 100)
    if args.iterations < WARM_UP + 4:
        parser.error(f"--iterations: at least {WARM_UP + 4}")
    return args


def ours(args: argparse.Namespace, *, max_lag: int, seed: int) -> FinishedRun:
    options = {
        "env": ENV,
        "env-count": ENVS,
        "horizon": HORIZON,
        "iterations": args.iterations,
        "max-lag": max_lag,
        "mode": args.mode_lag1 if max_lag else args.mode_lag0,
        "seed": seed,
    }
    return run_ours(EXAMPLE, options)


def peer(args: argparse.Namespace, *, seed: int) -> dict[str, Any]:
    iterations = max(8, args.iterations // 4)
    settings = {
        "env": ENV,
        "envs": ENVS,
        "steps": BATCH * iterations,
        "batch": BATCH,
        "epochs": 10,
        "minibatch": 256,
        "seed": seed,
        "warm-up": 2,
    }
    flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    with Meter() as meter:
        figures = run_json([sys.executable, "-m", "peers.sb3_ppo", *flags], cwd=BENCH)
    return figures | {"others_cores": meter.others_cores}


def one_round(args: argparse.Namespace, seed: int) -> dict[str, float]:
    runs = {lag: ours(args, max_lag=lag, seed=seed) for lag in (0, 1)}
    theirs = peer(args, seed=seed)
    lag0, lag1 = (steady(runs[lag].rows, warm_up=WARM_UP, drain=lag + 1) for lag in (0, 1))
    others = (*(run.others_cores for run in runs.values()), theirs["others_cores"])
    figures = {
        "ratio_lag0": lag0.env_steps_per_s / theirs["env_steps_per_s"],
        "ratio_lag1": lag1.env_steps_per_s / theirs["env_steps_per_s"],
        "cpu_ratio": lag0.cpu_s_per_step / theirs["cpu_s_per_step"],
        "cpu_ratio_lag1": lag1.cpu_s_per_step / theirs["cpu_s_per_step"],
        "others_cores": max(others),
        "env_steps_per_s": lag1.env_steps_per_s,
        "env_steps_per_s_lag0": lag0.env_steps_per_s,
        "env_steps_per_s_sb3": theirs["env_steps_per_s"],
        "cpu_us_per_step_lag0": lag0.cpu_s_per_step * 1e6,
        "cpu_us_per_step_lag1": lag1.cpu_s_per_step * 1e6,
        "cpu_us_per_step_sb3": theirs["cpu_s_per_step"] * 1e6,
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
        "train_throughput",
        **{key: median(each[key] for each in rounds) for key in rounds[0]},
        n=len(rounds),
        iterations=args.iterations,
        modes={"lag0": args.mode_lag0, "lag1": args.mode_lag1},
    )


if __name__ == "__main__":
    main()
