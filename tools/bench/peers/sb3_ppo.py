"""Stable-Baselines3's PPO on a Gymnasium MuJoCo id, measured from outside its own code.

    cd tools/bench && python -m peers.sb3_ppo --env HalfCheetah-v5 --steps 100000

Prints one JSON line: throughput and CPU per environment step over the steady part of the run
(imports, construction and the first iterations are left out), and the learning curve as the mean
of the last 20 training episodes' raw returns at 20 points.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque

from common import busy_s, cpu_s, missing_peer

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
except ImportError:
    missing_peer("stable-baselines3")

import torch

CURVE_POINTS = 20
EPISODES = 20


class Recorder(BaseCallback):
    """Marks at iteration boundaries, and returns of finished episodes."""

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        self.marks: list[tuple[float, float, float, int]] = []
        self.returns: deque[float] = deque(maxlen=EPISODES)
        self.episodes = 0
        self.curve: list[tuple[int, float]] = []
        self._total_steps = total_steps

    def mark(self) -> None:
        self.marks.append((time.perf_counter(), cpu_s(), busy_s(), self.num_timesteps))

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(float(info["episode"]["r"]))
                self.episodes += 1
        return True

    def _on_rollout_start(self) -> None:
        self.mark()

    def _on_rollout_end(self) -> None:
        due = (len(self.curve) + 1) * self._total_steps / CURVE_POINTS
        if self.num_timesteps >= due and self.returns:
            self.curve.append((self.num_timesteps, self.mean_return()))

    def _on_training_end(self) -> None:
        self.mark()

    def mean_return(self) -> float:
        """Mean of the last finished training episodes' raw returns."""
        return round(sum(self.returns) / len(self.returns), 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--envs", type=int, default=8, help="environments in one process")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps in all")
    parser.add_argument("--batch", type=int, default=2048, help="environment steps of an update")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4, help="constant learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--warm-up", type=int, default=2, help="iterations that are not measured")
    return parser.parse_args()


def train(args: argparse.Namespace) -> Recorder:
    """Train with observation and reward normalisation; the rest as in the reference settings."""
    vector = make_vec_env(args.env, n_envs=args.envs, seed=args.seed, vec_env_cls=DummyVecEnv)
    environments = VecNormalize(vector, gamma=0.99)
    model = PPO(
        "MlpPolicy",
        environments,
        learning_rate=args.lr,
        n_steps=args.batch // args.envs,
        batch_size=args.minibatch,
        n_epochs=args.epochs,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": torch.nn.Tanh,
        },
        seed=args.seed,
        device="cpu",
    )
    recorder = Recorder(args.steps)
    model.learn(args.steps, callback=recorder)
    environments.close()
    return recorder


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    recorder = train(args)
    first = recorder.marks[min(args.warm_up, len(recorder.marks) - 2)]
    last = recorder.marks[-1]
    wall_s, own_s, all_s, steps = (b - a for a, b in zip(first, last, strict=True))
    figures = {
        "peer": "stable-baselines3",
        "env": args.env,
        "seed": args.seed,
        "env_steps": last[3],
        "env_steps_per_s": round(steps / wall_s, 1),
        "cpu_s_per_step": round(own_s / steps, 8),
        "others_cores": round(max(0.0, all_s - own_s) / wall_s, 3),
        "cpu_s": round(last[1], 1),
        "episodes": recorder.episodes,
        "final_return": recorder.mean_return() if recorder.returns else None,
        "curve": recorder.curve,
        "settings": {
            key: getattr(args, key)
            for key in ("envs", "batch", "epochs", "minibatch", "lr", "threads")
        },
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
