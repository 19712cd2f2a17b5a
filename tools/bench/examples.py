"""Do the examples learn? Returns over seeds of each variant of an example, drawn beside each other.

    tools/bench/examples.py pixels --seeds 0 1 2
    tools/bench/examples.py memory --seeds 0 1 2
    tools/bench/examples.py lag --seeds 0 1 2
    tools/bench/examples.py sac-hopper --seeds 0 1 2
    tools/bench/examples.py memory --summary

A finished seed appends one line to docs/results/NAME.jsonl; seeds that are there already are
skipped. `--quick` runs a few iterations of each variant and records nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import BENCH, ROOT, commit, emit, floor, machine
from learning import curve_of, run_stepping_aside
from runs import run_ours

Record = dict[str, Any]
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")
QUICK_ITERATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A script, and the options in which its variants differ."""

    script: str
    title: str
    file: str
    """Name of the results, without a suffix."""
    variants: dict[str, dict[str, Any]]
    target: float
    """The final return that counts as solved."""
    common: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Variants that are Stable-Baselines3's, with the options of `peers.sb3_off_policy`."""


PENDULUM: dict[str, Any] = {
    "env": "InvertedPendulum-v5",
    "iterations": 120,
    "hidden": (64, 64),
}
"""Off-policy learners on 7,680 steps, 6,720 updates at most, of nets that a core is quick with."""

PEER = "Stable-Baselines3"


def beside_peer(
    script: str, algorithm: str, env: str, steps: int, target: float, **common: Any
) -> Example:
    """An off-policy example and Stable-Baselines3's with the same settings, 64 steps a batch."""
    name = env.removesuffix("-v5").removeprefix("Inverted").lower()
    return Example(
        script=script,
        title=f"{algorithm} on {env}, the same settings",
        file=f"{name}-{algorithm.lower()}-peer",
        variants={"rlinf_async": {}},
        peers={PEER: {"algorithm": algorithm.lower(), "env": env, "steps": steps}},
        target=target,
        common={"env": env, "iterations": -(-steps // 64), **common},
    )


EXAMPLES = {
    "sac-hopper": beside_peer("examples/sac_mujoco.py", "SAC", "Hopper-v5", 50_000, 1000.0),
    "td3-pendulum": beside_peer("examples/td3.py", "TD3", "InvertedPendulum-v5", 10_000, 900.0),
    "td3-reacher": beside_peer("examples/td3.py", "TD3", "Reacher-v5", 10_000, -10.0),
    "crossq-pendulum": beside_peer(
        "examples/crossq.py", "CrossQ", "InvertedPendulum-v5", 4_000, 900.0
    ),
    "pixels": Example(
        script="examples/ppo_pixels.py",
        title="PPO on InvertedPendulum-v5 from 64 x 64 pixels",
        file="pendulum-pixels-ppo",
        variants={
            "drawn": {"view": "drawn", "frames": 3, "iterations": 200},
            "camera": {"view": "camera"},
        },
        target=900.0,
    ),
    "memory": Example(
        script="examples/recurrent_memory.py",
        title="PPO: naming a cue seen 11 steps ago, one of four",
        file="memory-ppo",
        variants={"recurrent": {"core": "gru"}, "feed-forward": {"core": "none"}},
        target=0.9,
    ),
    "lag": Example(
        script="examples/async_ppo_mujoco.py",
        title="PPO on InvertedPendulum-v5 with samples up to k versions old",
        file="pendulum-lag-ppo",
        variants={f"lag {lag}": {"max-lag": lag} for lag in (0, 1, 2, 4)},
        target=900.0,
        common={"env": "InvertedPendulum-v5", "env-count": 32, "iterations": 60},
    ),
    "impala": Example(
        script="examples/impala_vtrace.py",
        title="IMPALA on InvertedPendulum-v5 with samples up to k versions old",
        file="pendulum-impala",
        variants={f"lag {lag}": {"max-lag": lag} for lag in (0, 2, 4)},
        target=900.0,
        common={"iterations": 300},
    ),
    "sac": Example(
        script="examples/sac_mujoco.py",
        title="SAC on InvertedPendulum-v5",
        file="pendulum-sac",
        variants={"sac": {"n-step": 1}, "prioritised": {"prioritised": 0.6}},
        target=900.0,
        common={**PENDULUM, "learning-rate": 1e-3},
    ),
    "td3": Example(
        script="examples/td3.py",
        title="TD3 on InvertedPendulum-v5",
        file="pendulum-td3",
        variants={"td3": {}},
        target=900.0,
        common=PENDULUM,
    ),
    "crossq": Example(
        script="examples/crossq.py",
        title="CrossQ on InvertedPendulum-v5",
        file="pendulum-crossq",
        variants={"crossq": {}},
        target=900.0,
        common={**PENDULUM, "critic-hidden": (128, 128)},
    ),
}


def results_path(example: Example, suffix: str = "jsonl") -> Path:
    """Where its results lie."""
    return ROOT / "docs" / "results" / f"{example.file}.{suffix}"


def recorded(example: Example) -> list[Record]:
    """Every recorded seed."""
    path = results_path(example)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_seed(example: Example, variant: str, seed: int, **more: Any) -> Record:
    """One run, on one thread in one process."""
    options = {
        **example.common,
        **example.variants[variant],
        "seed": seed,
        "mode": "serial",
        **more,
    }
    with floor():
        run = run_ours(example.script, options)
    last = run.rows[-1]
    return {
        "variant": variant,
        "seed": seed,
        "command": shlex.join(["python", *run.command[1:]]),
        "env_steps": last["env_steps"],
        "final_return": round(last["return_mean"], 3),
        "episodes": last["episodes"],
        "cpu_s": round(last["cpu_s"], 1),
        "curve": curve_of(run.rows, last["env_steps"], digits=3),
        **where_and_when(),
    }


def run_peer(example: Example, variant: str, seed: int) -> Record:
    """One run of Stable-Baselines3, which steps aside for benchmarks."""
    options = {**example.peers[variant], "seed": seed}
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    arguments = ["-m", "peers.sb3_off_policy", *flags]
    figures = json.loads(run_stepping_aside([sys.executable, *arguments], BENCH).splitlines()[-1])
    kept = ("env_steps", "final_return", "episodes", "cpu_s", "curve")
    return {
        "variant": variant,
        "seed": seed,
        "command": shlex.join(["python", *arguments]),
        **{name: figures[name] for name in kept},
        **where_and_when(),
    }


def where_and_when() -> Record:
    """What every record says of its run."""
    today = datetime.date.today().isoformat()
    return {"date": today, "machine": machine(), "commit": commit()}


def series(example: Example, seeds: Sequence[int]) -> None:
    """Run what is not recorded yet, one after another."""
    for variant in (*example.variants, *example.peers):
        run = run_peer if variant in example.peers else run_seed
        for seed in seeds:
            if any((r["variant"], r["seed"]) == (variant, seed) for r in recorded(example)):
                print(f"{variant} seed {seed} is recorded already", flush=True)
                continue
            result = run(example, variant, seed)
            results_path(example).parent.mkdir(parents=True, exist_ok=True)
            with results_path(example).open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{variant} seed {seed}: {result['final_return']:g}", flush=True)


def summary(example: Example, records: Sequence[Record]) -> dict[str, Any]:
    """Final returns of each variant, and how many of its seeds solved the task."""
    finals = {
        v: [r["final_return"] for r in records if r["variant"] == v]
        for v in (*example.variants, *example.peers)
    }
    return {
        variant: {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "solved": sum(value >= example.target for value in values),
            "n": len(values),
        }
        for variant, values in finals.items()
        if values
    }


def draw(example: Example) -> None:
    """docs/results/NAME.png: every seed as one line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    shown = (*example.variants, *example.peers)
    for variant, colour in zip(shown, COLOURS, strict=False):
        found = [r for r in recorded(example) if r["variant"] == variant]
        for number, record in enumerate(found):
            label = f"{variant}, {len(found)} seeds" if number == 0 else None
            steps, returns = zip(*record["curve"], strict=True)
            axes.plot(steps, returns, color=colour, lw=1.6, label=label)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return, mean of 20 training episodes")
    axes.set_title(example.title)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(results_path(example, "png"), dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("example", choices=sorted(EXAMPLES), nargs="?")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--summary", action="store_true", help="draw and sum up what is recorded")
    parser.add_argument("--quick", action="store_true", help="a few iterations, nothing recorded")
    args = parser.parse_args()
    if args.quick:
        names = [args.example] if args.example else sorted(EXAMPLES)
        shown = {
            name: {
                variant: run_seed(EXAMPLES[name], variant, 0, iterations=QUICK_ITERATIONS)
                for variant in EXAMPLES[name].variants
            }
            for name in names
        }
        returns = {n: {v: r["final_return"] for v, r in each.items()} for n, each in shown.items()}
        emit("examples", iterations=QUICK_ITERATIONS, returns=returns)
        return
    if args.example is None:
        parser.error("name an example, or --quick")
    example = EXAMPLES[args.example]
    if not args.summary:
        series(example, args.seeds)
    draw(example)
    emit("examples", example=args.example, **summary(example, recorded(example)))


if __name__ == "__main__":
    main()
