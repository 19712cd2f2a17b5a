"""How much sooner is a learner done when another core computes shards of its gradient?

One learner in this process, one follower in another, each on a core of its own. Updates with and
without the follower take turns; the parameters must be the same bits either way. Ratios are of the
clock, medians over the turns: 2 would be perfect.

    python tools/bench/spread_gradient.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from common import emit, machine_to_itself, median, on_one_thread
from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.spread import Spread
from rlinf_async.communication.lockstep import Leader
from rlinf_async.execution.references import describe
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import ActorCritic, GaussianActorCritic
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.train import learner_of

HORIZON, SLOTS, SHARDS = 32, 16, 2
ITERATIONS = 1000
WORKLOADS = ("mlp-64", "mlp-256", "pixels-64")
RECORDS = {
    "loss": PPOLoss(clip=0.2),
    "advantages": gae(0.99, 0.95),
    "optimizer": Adam(learning_rate=1e-4),
}
SETTINGS = {
    **{name: describe(record, where=name) for name, record in RECORDS.items()},
    "epochs": 2,
    "minibatch": 256,
    "shards": SHARDS,
}
COMMON: dict[str, Any] = {
    "normalize": False,
    "iterations": ITERATIONS,
    "max_lag": 0,
    "lag": "exact",
}


def spaces_of(workload: str) -> Spaces:
    """17 numbers, or two colour images of 64 x 64; six numbers of action."""
    seen = ArraySpec(name="state", shape=(17,), dtype="float32")
    if workload.startswith("pixels"):
        seen = ArraySpec(name="image", shape=(6, 64, 64), dtype="uint8")
    bounds = {"low": (-1.0,) * 6, "high": (1.0,) * 6}
    action = ActionSpec(kind="continuous", shape=(6,), dtype="float32", **bounds)
    return Spaces(observation=(seen,), action=action)


def policy_of(workload: str) -> Any:
    """The policy of a workload, built anew."""
    spaces = spaces_of(workload)
    if workload.startswith("pixels"):
        return ActorCritic(spaces, hidden=(), image_channels=16)
    width = int(workload.removeprefix("mlp-"))
    return GaussianActorCritic(spaces, hidden=(width, width))


def random_batch(spaces: Spaces, rng: np.random.Generator) -> dict[str, Any]:
    """Segments of noise."""
    shape = (HORIZON, SLOTS)
    (seen,) = spaces.observation
    if seen.dtype == "uint8":
        rows = rng.integers(0, 255, (HORIZON + 1, SLOTS, *seen.shape), np.uint8)
    else:
        rows = rng.standard_normal((HORIZON + 1, SLOTS, *seen.shape), dtype=np.float32)
    return {
        f"obs/{seen.name}": rows,
        f"final/{seen.name}": rows[1:],
        "action": rng.standard_normal((*shape, 6), dtype=np.float32),
        "logp": rng.normal(-8.0, 0.3, shape).astype(np.float32),
        "value": rng.standard_normal((HORIZON + 1, SLOTS), dtype=np.float32),
        "terminated": rng.random(shape) < 0.01,
        "truncated": np.zeros(shape, np.bool_),
        "final_value": np.zeros(shape, np.float32),
        "reward": rng.standard_normal(shape),
        "version": np.zeros(HORIZON, np.int64),
    }


def follow(workload: str, address: str) -> None:
    """Be the follower, until the learner is gone."""
    from rlinf_async.workers.gradient import GradientWorker

    recorder: Any = Recorder("follower", 1 << 12)
    context: Any = SimpleNamespace(host="follower", recorder=recorder)
    worker = GradientWorker(
        context,
        policy=lambda: policy_of(workload),
        spaces=spaces_of(workload).to_json(),
        **COMMON,
    )
    worker.join(SETTINGS, address, 1, 60.0)
    while sys.stdin.readline():
        worker.follow(60.0)
    worker.close()


def compare(workload: str, turns: int, core: int) -> dict[str, Any]:
    """Seconds of an update alone and led, of `turns` turns each."""
    spaces = spaces_of(workload)
    learner: Any = learner_of(policy_of(workload), spaces, settings=SETTINGS, **COMMON)
    rng = np.random.default_rng(0)
    start = rng.normal(0.0, 0.05, learner.parameters.size).astype(np.float32)
    batch = random_batch(spaces, rng)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    ends: dict[bool, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="rlinf-spread-") as folder:
        address = f"{folder}/leader"
        spread = Spread(Leader(address), shards=SHARDS, parameters=start.size)
        learner.spread = spread
        command = ["taskset", "-c", str(core), sys.executable, __file__, "--follow", workload]
        follower = subprocess.Popen([*command, address], stdin=subprocess.PIPE, text=True)
        assert follower.stdin is not None
        for turn in range(2 * (turns + 1)):
            led = turn % 2 == 1
            if led:
                follower.stdin.write("once\n")
                follower.stdin.flush()
                spread.begin(1, limit_s=60.0)
            learner.load(start)
            learner.restore({**learner.state(), **reset_moments(start.size)})
            began_s = time.perf_counter()
            learner.update(
                batch, statistics=Statistics.initial(spaces), scales={0: 1.0}, version=1, seed=0
            )
            if turn > 1:  # the first of each kind warms up
                seconds[led].append(time.perf_counter() - began_s)
            if led:
                spread.end()
            ends[led] = learner.parameters.tobytes()
        follower.stdin.close()
        follower.wait(30)
        spread.close()
    return {
        "alone_ms": 1e3 * median(seconds[False]),
        "led_ms": 1e3 * median(seconds[True]),
        "ratio": median([a / b for a, b in zip(seconds[False], seconds[True], strict=True)]),
        "identical": ends[False] == ends[True],
    }


def reset_moments(size: int) -> dict[str, Any]:
    """Adam as it was before its first step."""
    zeros = np.zeros(size, np.float32)
    return {"adam/mean": zeros, "adam/square": zeros, "adam/steps": np.zeros(1, np.int64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--follow", nargs=2, metavar=("WORKLOAD", "ADDRESS"), help="internal")
    args = parser.parse_args()
    on_one_thread()
    if args.follow:
        follow(*args.follow)
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two cores are needed")
    os.sched_setaffinity(0, {cores[0]})
    with machine_to_itself():
        found = {name: compare(name, 5 if args.quick else 30, cores[1]) for name in WORKLOADS}
    emit(
        "spread_gradient",
        ratio={name: each["ratio"] for name, each in found.items()},
        identical=all(each["identical"] for each in found.values()),
        workloads=found,
    )


if __name__ == "__main__":
    main()
