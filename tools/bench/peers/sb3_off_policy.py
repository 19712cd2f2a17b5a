"""SAC, TD3 and CrossQ of Stable-Baselines3 (and its contrib package): learning curves.

    cd tools/bench && python -m peers.sb3_off_policy --algorithm sac --env Hopper-v5 --steps 50000

The settings are those of `examples/sac_mujoco.py`, `td3.py` and `crossq.py`: eight environments,
eight steps of each between as many updates as steps. Prints one JSON line: the mean of the last 20
training episodes' returns at 20 points, and CPU seconds.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from common import cpu_s, missing_peer
from peers.sb3_ppo import Recorder

try:
    from sb3_contrib import CrossQ
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv
except ImportError:
    missing_peer("sb3-contrib")

import numpy as np
import torch

ALGORITHMS = {"sac": SAC, "td3": TD3, "crossq": CrossQ}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="sac")
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--horizon", type=int, default=8, help="steps of each between updates")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps in all")
    parser.add_argument("--warmup", type=int, default=1000, help="random steps")
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--lr", type=float, help="default: 3e-4 of SAC, else 1e-3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    args = parser.parse_args()
    args.lr = args.lr or (3e-4 if args.algorithm == "sac" else 1e-3)
    return args


def settings_of(algorithm: str, vector: Any) -> dict[str, Any]:
    """What belongs to one algorithm alone."""
    if algorithm == "td3":
        size = vector.action_space.shape[0]
        noise = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
        nets = {"pi": [256, 256], "qf": [256, 256]}
        return {"action_noise": noise, "policy_delay": 2, "policy_kwargs": {"net_arch": nets}}
    if algorithm == "crossq":
        return {"policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [512, 512]}}}
    return {}


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    vector = make_vec_env(args.env, n_envs=args.envs, seed=args.seed, vec_env_cls=DummyVecEnv)
    model = ALGORITHMS[args.algorithm](
        "MlpPolicy",
        vector,
        learning_rate=args.lr,
        learning_starts=args.warmup,
        train_freq=args.horizon,
        gradient_steps=-1,  # as many updates as steps
        batch_size=args.minibatch,
        seed=args.seed,
        device="cpu",
        **settings_of(args.algorithm, vector),
    )
    recorder = Recorder(args.steps)
    model.learn(args.steps, callback=recorder)
    vector.close()
    figures = {
        "peer": "stable-baselines3",
        "algorithm": args.algorithm,
        "env": args.env,
        "seed": args.seed,
        "env_steps": model.num_timesteps,
        "cpu_s": round(cpu_s(), 1),
        "episodes": recorder.episodes,
        "final_return": recorder.mean_return() if recorder.returns else None,
        "curve": recorder.curve,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
