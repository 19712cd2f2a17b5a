"""Another system's vector environment, stepped with random actions on demand.

    cd tools/bench && python -m peers.env_steps --system sync --env Ant-v5 --envs 64

Says "ready", then answers every number of steps on standard input with their CPU seconds, those of
child processes included. `sync` and `async` are Gymnasium's SyncVectorEnv and AsyncVectorEnv (a
process for each environment) as `make_vec` gives them; `envpool` is EnvPool with one thread.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ACTION_BATCHES = 64


def open_gymnasium(args: argparse.Namespace, *, mode: str) -> tuple[Any, Any]:
    """Gymnasium's vector environment and one environment's action space."""
    import gymnasium

    envs = gymnasium.make_vec(args.env, num_envs=args.envs, vectorization_mode=mode)
    envs.reset(seed=args.seed)
    return envs, envs.single_action_space


def open_envpool(args: argparse.Namespace) -> tuple[Any, Any]:
    """EnvPool's vector environment and one environment's action space."""
    import envpool

    envs = envpool.make(
        args.env, env_type="gymnasium", num_envs=args.envs, num_threads=1, seed=args.seed
    )
    envs.reset()
    return envs, envs.action_space


SYSTEMS: dict[str, Callable[[argparse.Namespace], tuple[Any, Any]]] = {
    "sync": functools.partial(open_gymnasium, mode="sync"),
    "async": functools.partial(open_gymnasium, mode="async"),
    "envpool": open_envpool,
}


def cpu_s() -> float:
    """CPU seconds of this process and of its live children so far."""
    children = multiprocessing.active_children()
    clocks = [_cpu_clock(child.pid) for child in children if child.pid is not None]
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def _cpu_clock(pid: int) -> int:
    """The clock of another process's CPU time, as clock_getcpuclockid(3) numbers it."""
    return (~pid << 3) | 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    envs, space = SYSTEMS[args.system](args)
    rng = np.random.default_rng(args.seed)
    shape = (ACTION_BATCHES, args.envs, *space.shape)
    batches = rng.uniform(space.low, space.high, shape).astype(space.dtype)
    print("ready", flush=True)
    t = 0
    for line in sys.stdin:
        start_s = cpu_s()
        for _ in range(int(line)):
            envs.step(batches[t % ACTION_BATCHES])
            t += 1
        print(cpu_s() - start_s, flush=True)
    envs.close()


if __name__ == "__main__":
    main()
