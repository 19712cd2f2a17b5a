"""Does success rise from a cloned policy? GRPO and PPO on a Meta-World task, by success alone.

    tools/bench/grpo.py --seeds 0 1 2
    tools/bench/grpo.py --algorithm ppo --seeds 0 1 2
    tools/bench/grpo.py --summary

Each seed clones a policy of its own from two demonstrations, and trains from it. A finished seed
appends one line to docs/results/reach-grpo.jsonl; seeds that are there already are skipped. Needs
`python -m rlinf_async venvs install metaworld`. `--quick` makes one small iteration of each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import MISSING_PEER, ONE_THREAD, ROOT, commit, emit, floor, machine
from rlinf_async.hardware.interpreters import installed, named
from runs import read_rows, run_command

Record = dict[str, Any]
RESULTS = ROOT / "docs" / "results" / "reach-grpo.jsonl"
TASK = "reach-v3"
SCRIPTS = {"grpo": "examples/grpo_metaworld.py", "ppo": "examples/ppo_metaworld.py"}
COLOURS = {"grpo": "tab:blue", "ppo": "tab:orange"}
CLONE: dict[str, Any] = {
    "task": TASK,
    "demonstrations": 2,
    "iterations": 20,
    "epochs": 20,
    "horizon": 4,
    "minibatch": 32,
    "evaluation-episodes": 1,
}
QUICK: dict[str, dict[str, Any]] = {
    "grpo": {"groups": 2, "group-size": 4, "replacements": 1, "limit": 20},
    "ppo": {"horizon": 20, "minibatch": 64},
}


def run(script: str, options: Mapping[str, Any], folder: Path) -> tuple[str, list[Record]]:
    """Run `script` in `folder`; its command as a user writes it, and its metrics."""
    command = run_command(script, options)
    where = ["--run-dir", str(folder), "--progress", "none", "--no-curve"]
    done = subprocess.run(
        [*command, *where],
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-4000:], file=sys.stderr)
        sys.exit(f"{shlex.join(command)} failed with {done.returncode}")
    return shlex.join(["python", *command[1:]]), read_rows(folder / "metrics.jsonl")


def curve_of(rows: Sequence[Record]) -> list[tuple[int, float]]:
    """Environment steps that a version was trained on, and its success on fresh seeds."""
    steps = {0: 0} | {row["version"]: row["env_steps"] for row in rows}
    scored = [row for row in rows if "eval/version" in row]
    return [(steps[int(r["eval/version"])], r["eval/success_once"]) for r in scored]


def run_seed(
    algorithm: str, seed: int, *, cloning: Mapping[str, Any] = CLONE, **more: Any
) -> Record:
    """Clone, then train; what came of it."""
    with floor(), tempfile.TemporaryDirectory(prefix="rlinf-bench-") as folder:
        clone = Path(folder, "clone")
        cloned, _ = run("examples/bc_metaworld.py", {**cloning, "seed": seed}, clone)
        start = {"task": TASK, "seed": seed, "init-from": clone / "checkpoint", **more}
        command, rows = run(SCRIPTS[algorithm], start, Path(folder, "run"))
    curve = curve_of(rows)
    return {
        "algorithm": algorithm,
        "seed": seed,
        "clone_command": cloned,
        "command": command.replace(str(clone), "CLONE"),
        "env_steps": rows[-1]["env_steps"],
        "success_before": curve[0][1],
        "success_after": curve[-1][1],
        "episodes": rows[-1]["episodes"],
        "cpu_s": round(rows[-1]["cpu_s"], 1),
        "curve": curve,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "commit": commit(),
    }


def recorded(algorithm: str) -> list[Record]:
    """The recorded seeds."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [r for line in lines if (r := json.loads(line))["algorithm"] == algorithm]


def series(algorithm: str, seeds: Sequence[int]) -> None:
    """Run what is not recorded yet, one after another."""
    for seed in seeds:
        if any(record["seed"] == seed for record in recorded(algorithm)):
            print(f"{algorithm} seed {seed} is recorded already", flush=True)
            continue
        result = run_seed(algorithm, seed)
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        before, after = result["success_before"], result["success_after"]
        print(f"{algorithm} seed {seed}: {before:.0%} to {after:.0%}", flush=True)


def summary() -> Record:
    """Success before and after of each seed, and by how many points it rose."""
    told: Record = {}
    for algorithm in SCRIPTS:
        found = recorded(algorithm)
        rises = [100 * (r["success_after"] - r["success_before"]) for r in found]
        if found:
            told[algorithm] = {
                "before": [r["success_before"] for r in found],
                "after": [r["success_after"] for r in found],
                "rise_points_min": round(min(rises), 1),
                "rise_points_median": round(statistics.median(rises), 1),
                "seeds": len(found),
            }
    return told


def draw() -> None:
    """docs/results/reach-grpo.png: every seed as one line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for algorithm, colour in COLOURS.items():
        found = recorded(algorithm)
        for number, record in enumerate(found):
            label = f"{algorithm.upper()}, {len(found)} seeds" if number == 0 else None
            steps, success = zip(*record["curve"], strict=True)
            axes.plot(steps, success, "o-", ms=3, color=colour, lw=1.6, label=label)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("success on 50 fresh seeds")
    axes.set_ylim(0.0, 1.02)
    axes.set_title(f"{TASK}, success alone, from a clone of 2 demonstrations")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(RESULTS.with_suffix(".png"), dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=sorted(SCRIPTS), default="grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--summary", action="store_true", help="draw and sum up what is recorded")
    parser.add_argument("--quick", action="store_true", help="one small iteration, not recorded")
    args = parser.parse_args()
    if not args.summary and installed(named("metaworld")) is None:
        print("run `python -m rlinf_async venvs install metaworld` first", file=sys.stderr)
        sys.exit(MISSING_PEER)
    if args.quick:
        small = {"iterations": 1, "evaluation-episodes": 2, "cloning": {**CLONE, "iterations": 1}}
        curves = {name: run_seed(name, 0, **small, **QUICK[name])["curve"] for name in QUICK}
        emit("grpo", curves=curves)
        return
    if not args.summary:
        series(args.algorithm, args.seeds)
    draw()
    emit("grpo", task=TASK, **summary())


if __name__ == "__main__":
    main()
