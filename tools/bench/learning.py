"""Learning quality: returns over seeds, ours beside Stable-Baselines3's PPO with the same settings.

    tools/bench/learning.py                  # whatever is missing of all results, hours of it
    tools/bench/learning.py --quick          # three tasks that are solved within a minute
    tools/bench/learning.py sb3 --env HalfCheetah-v5 --seeds 0 1 2 3 4
    tools/bench/learning.py ours --env HalfCheetah-v5 --seeds 0 1 2 3 4
    tools/bench/learning.py --summary --env HalfCheetah-v5

A finished seed appends one line to docs/results/ENV-ppo.jsonl; seeds that are there already are
skipped, so an interrupted series goes on where it stopped. It never overlaps a benchmark: a run
of Stable-Baselines3 is stopped while a benchmark holds the machine and goes on afterwards (its
numbers do not depend on time), a benchmark waits for a run of ours (it has deadlines of its own).
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from common import BENCH, ONE_THREAD, ROOT, benchmark_waits, commit, emit, floor, machine
from runs import run_ours

SCRIPT = "tools/bench/scripts/ppo_reference.py"
BATCH = 2048
CURVE_POINTS = 20
PPO_ENVS = ("HalfCheetah-v5", "Hopper-v5")
LABELS = {"sb3": "Stable-Baselines3", "ours": "rlinf_async"}
COLOURS = {"sb3": "tab:orange", "ours": "tab:blue"}

Record = dict[str, Any]


def results_path(env: str, suffix: str = "jsonl") -> Path:
    """Where the results of `env` lie."""
    return ROOT / "docs" / "results" / f"{env.lower()}-ppo.{suffix}"


def recorded(env: str, steps: int) -> list[Record]:
    """Every recorded seed of `env` that was asked for `steps` environment steps."""
    path = results_path(env)
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for record in map(json.loads, lines) if record["requested_steps"] == steps]


# ---- running ----


def die_with_parent() -> None:
    """In the child: be killed when the parent ends, also while stopped."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_stepping_aside(command: Sequence[str], cwd: Path) -> str:
    """Run `command`, stopped while a benchmark holds the machine; its standard output."""
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | ONE_THREAD,
            stdout=output,
            preexec_fn=die_with_parent,
        )
        child.send_signal(signal.SIGSTOP)
        while child.poll() is None:
            with floor():
                child.send_signal(signal.SIGCONT)
                while child.poll() is None and not benchmark_waits():
                    time.sleep(0.2)
                child.send_signal(signal.SIGSTOP)
            while benchmark_waits():
                time.sleep(0.5)
        if child.returncode:
            sys.exit(f"{shlex.join(command)} failed with {child.returncode}")
        output.seek(0)
        return output.read()


def run_sb3(env: str, seed: int, steps: int) -> Record:
    """One seed of Stable-Baselines3."""
    arguments = ["-m", "peers.sb3_ppo", "--env", env, "--steps", str(steps), "--seed", str(seed)]
    output = run_stepping_aside([sys.executable, *arguments], BENCH)
    figures = json.loads(output.splitlines()[-1])
    return {
        "command": shlex.join(["python", *arguments]),
        **{k: figures[k] for k in ("env_steps", "final_return", "episodes", "cpu_s", "curve")},
    }


def run_engine(env: str, seed: int, steps: int) -> Record:
    """One seed of ours, with the numbers of steps that Stable-Baselines3 also rounds up to."""
    options = {"env": env, "iterations": -(-steps // BATCH), "seed": seed}
    with floor():
        run = run_ours(SCRIPT, options)
    last = run.rows[-1]
    return {
        "command": shlex.join(["python", *run.command[1:]]),
        "env_steps": last["env_steps"],
        "final_return": round(last["return_mean"], 1),
        "episodes": last["episodes"],
        "cpu_s": round(last["cpu_s"], 1),
        "curve": curve_of(run.rows, steps),
    }


def curve_of(rows: Sequence[Record], steps: int, *, digits: int = 1) -> list[tuple[int, float]]:
    """Environment steps and the mean return of the last 20 episodes at 20 points of a run."""
    points: list[tuple[int, float]] = []
    for row in rows:
        due = (len(points) + 1) * steps / CURVE_POINTS
        if row["env_steps"] >= due and row.get("return_mean") is not None:
            points.append((row["env_steps"], round(row["return_mean"], digits)))
    return points


RUNNERS: dict[str, Callable[[str, int, int], Record]] = {"sb3": run_sb3, "ours": run_engine}


def is_recorded(system: str, env: str, seed: int, steps: int) -> bool:
    """Whether this seed has its line already."""
    return any((r["system"], r["seed"]) == (system, seed) for r in recorded(env, steps))


def series(system: str, env: str, seeds: Sequence[int], steps: int) -> None:
    """Run the seeds that are not recorded yet, one after another."""
    for seed in seeds:
        if is_recorded(system, env, seed, steps):
            print(f"{system} {env} seed {seed} is recorded already", flush=True)
            continue
        result = {
            "system": system,
            "env": env,
            "seed": seed,
            "requested_steps": steps,
            **RUNNERS[system](env, seed, steps),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "commit": commit(),
        }
        if is_recorded(system, env, seed, steps):
            print(
                f"{system} {env} seed {seed} was recorded meanwhile by another series", flush=True
            )
            continue
        results_path(env).parent.mkdir(parents=True, exist_ok=True)
        with results_path(env).open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{system} {env} seed {seed}: {result['final_return']:.1f}", flush=True)


# ---- comparing ----


def permutation_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Two-sided exact test of equal means: the share of splits at least as far apart."""
    pooled = [*ours, *theirs]
    observed = abs(statistics.fmean(ours) - statistics.fmean(theirs))
    far = splits = 0
    for chosen in combinations(range(len(pooled)), len(ours)):
        first = [pooled[i] for i in chosen]
        rest = [value for i, value in enumerate(pooled) if i not in chosen]
        splits += 1
        far += abs(statistics.fmean(first) - statistics.fmean(rest)) >= observed - 1e-9
    return far / splits


def spread(finals: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation, extremes and median of final returns."""
    return {
        "mean": round(statistics.fmean(finals), 1),
        "std": round(statistics.stdev(finals), 1) if len(finals) > 1 else None,
        "min": min(finals),
        "median": statistics.median(finals),
        "max": max(finals),
        "n": len(finals),
    }


def verdict(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Where the median of ours lies among the peer's seeds."""
    if ours["median"] > theirs["max"]:
        return "above spread"
    return "within spread" if ours["median"] >= theirs["min"] else "below spread"


def summarise(env: str, steps: int) -> None:
    """Draw the curves, print a table and the JSON line."""
    records = recorded(env, steps)
    finals = {
        system: [r["final_return"] for r in records if r["system"] == system] for system in LABELS
    }
    spreads = {system: spread(values) for system, values in finals.items() if values}
    if not spreads:
        sys.exit(f"nothing is recorded for {env} at {steps:,} steps")
    print(f"{env}, {steps:,} steps, mean return of the last 20 training episodes")
    print(f"| {'system':<18} | seeds | mean | std | min | median | max |")
    print("|---|---|---|---|---|---|---|")
    for system, each in spreads.items():
        figures = " | ".join(f"{each[key] or 0:,.0f}" for key in ("mean", "std", "min"))
        print(
            f"| {LABELS[system]:<18} | {each['n']} | {figures}"
            f" | {each['median']:,.0f} | {each['max']:,.0f} |"
        )
    draw(env, records)
    comparison: dict[str, Any] = {"verdict": None, "permutation_p": None}
    if len(spreads) == len(LABELS):
        comparison = {
            "verdict": verdict(spreads["ours"], spreads["sb3"]),
            "permutation_p": permutation_p(finals["ours"], finals["sb3"]),
        }
    emit("learning", env=env, env_steps=steps, **spreads, **comparison)


def draw(env: str, records: Sequence[Record]) -> None:
    """docs/results/ENV-ppo.png: seeds as thin lines, each system's median as a thick one."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for system, label in LABELS.items():
        curves = [dict(r["curve"]) for r in records if r["system"] == system]
        for curve in curves:
            axes.plot(list(curve), list(curve.values()), color=COLOURS[system], alpha=0.35, lw=0.8)
        if curves:
            steps = sorted(set.intersection(*(set(curve) for curve in curves)))
            middle = [statistics.median(curve[s] for curve in curves) for s in steps]
            name = f"{label}, median of {len(curves)} seeds"
            axes.plot(steps, middle, color=COLOURS[system], lw=2.2, label=name)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return, mean of 20 training episodes")
    axes.set_title(f"PPO on {env}, the same settings")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(results_path(env, "png"), dpi=110)
    plt.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", nargs="?", choices=sorted(LABELS), help="what to run")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--summary", action="store_true", help="compare and draw what is recorded")
    parser.add_argument("--quick", action="store_true", help="three fast tasks, nothing recorded")
    return parser.parse_args()


# task -> variant of `examples.py`, and options that make it short
QUICK: dict[str, tuple[str, Record]] = {
    "lag": ("lag 1", {"iterations": 60}),
    "impala": ("lag 0", {"iterations": 150}),
    "memory": ("recurrent", {"iterations": 40}),
}


def quick() -> None:
    """One seed of three tasks, and how many of them were solved."""
    from examples import EXAMPLES, run_seed

    returns = {}
    solved = 0
    for task, (variant, options) in QUICK.items():
        returns[task] = run_seed(EXAMPLES[task], variant, 0, **options)["final_return"]
        solved += returns[task] >= EXAMPLES[task].target
        print(f"{task}: {returns[task]:g}", flush=True)
    emit("learning", solved=solved, tasks=len(QUICK), returns=returns)


def everything(seeds: Sequence[int]) -> None:
    """All series of this file and of `examples.py`, and how many variants solve their task."""
    from examples import EXAMPLES, draw, recorded, summary
    from examples import series as example_series

    for env in PPO_ENVS:
        for system in RUNNERS:
            series(system, env, [0, 1, 2, 3, 4], 500_000)
        summarise(env, 500_000)
    table = {}
    for name, example in EXAMPLES.items():
        example_series(example, seeds)
        draw(example)
        table[name] = summary(example, recorded(example))
    medians = [each for variants in table.values() for each in variants.values()]
    solved = sum(2 * each["solved"] > each["n"] for each in medians)
    emit("learning", solved=solved, tasks=len(medians), table=table)


def main() -> None:
    args = arguments()
    if args.quick:
        quick()
        return
    if not args.system and not args.summary:
        everything(args.seeds[:3])
        return
    if args.system:
        series(args.system, args.env, args.seeds, args.steps)
    if args.summary:
        summarise(args.env, args.steps)


if __name__ == "__main__":
    main()
