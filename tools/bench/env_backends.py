"""Loop, threads and processes for environments that are not batched, and what `auto` makes of them.

A cheap environment (CartPole) and a dear one, whose step is arithmetic in Python. Seconds are those
of the clock, for a step of a whole cell on all cores; every ratio is the median over runs in turns.

    python tools/bench/env_backends.py [--quick]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy as np

from common import emit, machine_to_itself, median

SLOTS = 16
DEAR = {"$name": "env_backends:Dear"}
"""By name, since processes import it."""
BACKENDS = ("loop", "threads", "processes", "auto")


class Dear(gymnasium.Env):  # type: ignore[misc]
    """A step takes about two milliseconds of Python."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Nothing to do."""
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        """Count."""
        total = sum(number * number for number in range(30_000))
        return np.array([total % 1000], np.float32), 0.0, False, False, {}


def seconds(cell: Any, least_s: float) -> float:
    """Of one step of the cell."""
    action = cell.spaces.action
    zeros = np.zeros((SLOTS, *action.shape), action.row_dtype)
    start_s, steps = time.perf_counter(), 0
    while (took_s := time.perf_counter() - start_s) < least_s:
        cell.step(zeros, lambda slot: slot)
        steps += 1
    return took_s / steps


def compare(env: Any, rounds: int, least_s: float) -> dict[str, float]:
    """Seconds of a step in each backend, medians."""
    from rlinf_async.envs.registry import make_cell

    cells: dict[str, Any] = {
        name: make_cell({"env": env, "backend": name}, SLOTS) for name in BACKENDS
    }
    for cell in cells.values():
        cell.reset(range(SLOTS))
        seconds(cell, least_s / 4)
    runs = [{name: seconds(cell, least_s) for name, cell in cells.items()} for _ in range(rounds)]
    for cell in cells.values():
        cell.close()
    return {name: median(run[name] for run in runs) for name in cells}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds")
    rounds, least_s = (5, 0.3) if parser.parse_args().quick else (15, 1.0)
    with machine_to_itself():
        found = {
            "cheap": compare("CartPole-v1", rounds, least_s),
            "dear": compare(DEAR, rounds, least_s),
        }
    emit(
        "env_backends",
        step_s=found,
        auto_over_best={k: v["auto"] / min(v.values()) for k, v in found.items()},
        auto_over_loop={k: v["auto"] / v["loop"] for k, v in found.items()},
        slots=SLOTS,
        n=rounds,
    )


if __name__ == "__main__":
    main()
