"""EnvPool stepping a MuJoCo id with random actions: environment steps per second and their CPU.

    cd tools/bench && python -m peers.envpool_steps --env HalfCheetah-v5 --envs 64

Prints one JSON line. Synchronous: every step waits for all environments, as ours does.
"""

from __future__ import annotations

import argparse
import json
import os

import numpy as np

from common import Meter, missing_peer

try:
    import envpool
except ImportError:
    missing_peer("envpool")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps in all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pool = envpool.make(
        args.env,
        env_type="gymnasium",
        num_envs=args.envs,
        num_threads=args.threads,
        seed=args.seed,
    )
    space = pool.action_space
    rng = np.random.default_rng(args.seed)
    batches = rng.uniform(space.low, space.high, (16, args.envs, *space.shape))
    pool.reset()
    for actions in batches:
        pool.step(actions)
    rounds = -(-args.steps // args.envs)
    with Meter() as meter:
        for index in range(rounds):
            pool.step(batches[index % len(batches)])
    steps = rounds * args.envs
    figures = {
        "peer": "envpool",
        "env": args.env,
        "envs": args.envs,
        "threads": args.threads,
        "env_steps_per_s": round(steps / meter.wall_s, 1),
        "cpu_s_per_step": round(meter.cpu_s / steps, 8),
        "others_cores": round(meter.others_cores, 3),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
