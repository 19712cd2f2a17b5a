"""Is training bit-identical in every mode, with any number of hosts, run after run?

Trains five iterations of the example script in each variant (mode, hosts, place of the policy, and
a repeated run) and compares SHA-256 hashes of the final parameters and of the running statistics.
Variants of one environment and one `max_lag` must agree; different lags give different numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ONE_THREAD, ROOT, emit
from runs import EXAMPLE, run_command

ITERATIONS = 5
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run the same numbers."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What fixes the numbers: all its variants must agree."""

    env: str
    max_lag: int

    @property
    def name(self) -> str:
        """`HalfCheetah-v5 max_lag=0`."""
        return f"{self.env} max_lag={self.max_lag}"


def variants(quick: bool) -> list[Variant]:
    """Every mode and number of hosts, the central policy with its depths, and a repeated run."""
    listed = [Variant(name="serial", options={"mode": "serial"})]
    for mode in ("collocated", "disaggregated", "hybrid"):
        for hosts in (2,) if quick else (1, 2, 4):
            options = {"mode": mode, "hosts": hosts}
            listed.append(Variant(name=f"{mode} x{hosts}", options=options))
        central = {"mode": mode, "hosts": 2, "policy": "central"}
        listed.append(Variant(name=f"{mode} x2 central", options=central))
    for depth in (1,) if quick else (1, 2, 4):
        options = {"mode": "hybrid", "hosts": 1, "policy": "central", "depth": depth}
        listed.append(Variant(name=f"hybrid central depth {depth}", options=options))
    listed.append(Variant(name="auto", options={"mode": "auto"}))
    again = Variant(name="collocated x2 again", options={"mode": "collocated", "hosts": 2})
    return [*listed, again]


def digest(case: Case, variant: Variant) -> str:
    """SHA-256 of the parameters (and, behind a slash, of the statistics) after the run."""
    from rlinf_async.execution.checkpoint import read_checkpoint

    options = {
        "env": case.env,
        "max-lag": case.max_lag,
        "env-count": 64,
        "horizon": 8,
        "iterations": ITERATIONS,
        "epochs": 3,
        "minibatch": 128,
        **variant.options,
    }
    with tempfile.TemporaryDirectory(prefix="rlinf-bench-") as folder:
        command = run_command(EXAMPLE, options)
        command += ["--run-dir", f"{folder}/run", "--progress", "none"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | ONE_THREAD,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            return f"failed with {done.returncode}: {done.stderr.strip()[-300:]}"
        found = read_checkpoint(Path(folder, "run", "checkpoint"))
    parameters = hashlib.sha256(found.parameters.tobytes()).hexdigest()
    statistics = hashlib.sha256()
    for name, values in sorted(found.statistics.items()):
        statistics.update(name.encode() + values.tobytes())
    return f"{parameters}/{statistics.hexdigest()[:16]}"


def compare(
    cases: list[Case], listed: list[Variant], repeat: int
) -> dict[str, dict[str, list[str]]]:
    """By case: each digest that was found, and the variants that gave it. One digest is right."""
    pairs = [(c, v) for c in cases for v in listed for _ in range(repeat)]
    # As many runs side by side as cores: they are small, and jitter is what this is about.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        digests = list(pool.map(lambda pair: digest(*pair), pairs))
    hashes: dict[str, dict[str, list[str]]] = {case.name: defaultdict(list) for case in cases}
    for (case, variant), found in zip(pairs, digests, strict=True):
        names = hashes[case.name][found]
        if variant.name not in names:
            names.append(variant.name)
    return hashes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: HalfCheetah-v5, max_lag 0 and 1, once"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    cases = [Case(env="HalfCheetah-v5", max_lag=lag) for lag in (0, 1)]
    if not args.quick:
        # Hopper falls: its episodes end inside segments, and their ends enter the statistics.
        cases += [Case(env="HalfCheetah-v5", max_lag=2)]
        cases += [Case(env="Hopper-v5", max_lag=lag) for lag in (0, 1, 2)]
    repeat = 1 if args.quick else 2
    listed = variants(args.quick)
    hashes = compare(cases, listed, repeat)
    identical = all(len(found) == 1 for found in hashes.values())
    if any(digest.startswith("failed") for found in hashes.values() for digest in found):
        identical = False
    if not identical:
        print(json.dumps(hashes, indent=2), file=sys.stderr)
    runs = len(cases) * len(listed) * repeat
    emit("reproducible", identical=identical, iterations=ITERATIONS, runs=runs, hashes=hashes)
    sys.exit(not identical)


if __name__ == "__main__":
    main()
