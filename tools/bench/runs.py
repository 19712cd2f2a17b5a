"""Runs of our own engine, started as a user starts them and read from their metrics file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ONE_THREAD, ROOT, Meter

EXAMPLE = "examples/ppo_mujoco.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What a run left behind."""

    command: list[str]
    rows: list[dict[str, Any]]
    """Its metrics.jsonl: one row for each iteration."""
    others_cores: float
    """Mean cores that something else kept busy meanwhile."""
    kept: dict[str, str] = field(default_factory=dict)
    """Texts of other files of the run folder that were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A run between two of its iterations: start-up and the end are left out."""

    env_steps_per_s: float
    cpu_s_per_step: float


def run_command(script: str, options: Mapping[str, Any]) -> list[str]:
    """`python -m rlinf_async run SCRIPT --option value ...`, to be run from the project's root."""
    flags: list[str] = []
    for key, value in options.items():
        flags += [f"--{key}", *map(str, value if isinstance(value, tuple) else (value,))]
    return [sys.executable, "-m", "rlinf_async", "run", script, *flags]


def run_ours(
    script: str,
    options: Mapping[str, Any],
    *,
    timeout_s: float = 1800.0,
    keep: Sequence[str] = (),
    rows: bool = True,
) -> FinishedRun:
    """Run `script` to its end in a folder that is removed afterwards; exit if it fails.

    `keep`: names of files of the run folder whose texts are returned. Without `rows` the script
    writes no metrics.
    """
    command = run_command(script, options)
    with tempfile.TemporaryDirectory(prefix="rlinf-bench-") as folder:
        where = ["--run-dir", f"{folder}/run", "--progress", "none", "--no-curve"]
        with Meter() as meter:
            done = subprocess.run(
                [*command, *where],
                cwd=ROOT,
                env=os.environ | ONE_THREAD,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        if done.returncode:
            print(done.stdout[-2000:] + done.stderr[-4000:], file=sys.stderr)
            sys.exit(f"{' '.join(command)} failed with {done.returncode}")
        found = read_rows(Path(folder, "run", "metrics.jsonl")) if rows else []
        kept = {name: Path(folder, "run", name).read_text() for name in keep}
    return FinishedRun(command=command, rows=found, others_cores=meter.others_cores, kept=kept)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def steady(rows: Sequence[Mapping[str, Any]], *, warm_up: int, drain: int) -> Steady:
    """Speed and CPU between the row `warm_up` and the `drain`-th from the end.

    The last iterations of a run with lag have nothing left to overlap with.
    """
    first, last = rows[warm_up], rows[len(rows) - 1 - drain]
    steps = last["env_steps"] - first["env_steps"]
    return Steady(
        env_steps_per_s=steps / (last["time_s"] - first["time_s"]),
        cpu_s_per_step=(last["cpu_s"] - first["cpu_s"]) / steps,
    )
