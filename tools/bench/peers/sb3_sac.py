"""Stable-Baselines3's SAC on a Gymnasium MuJoCo id, measured from outside its own code.

    cd tools/bench && python -m peers.sb3_sac --env HalfCheetah-v5 --batches 20

Prints one JSON line: throughput and CPU per environment step from the first update on (imports,
construction, random steps and the first batch of updates are left out).
"""

from __future__ import annotations

import argparse
import json
import time

from common import cpu_s, missing_peer

try:
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv
except ImportError:
    missing_peer("stable-baselines3")

import torch


class Recorder(BaseCallback):
    """Marks where each batch's collection begins: wall time, CPU time, steps."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[float, float, int]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.marks.append((time.perf_counter(), cpu_s(), self.num_timesteps))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--horizon", type=int, default=8, help="steps of each between updates")
    parser.add_argument("--batches", type=int, default=20, help="collections with updates")
    parser.add_argument("--warmup", type=int, default=256, help="random steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    vector = make_vec_env(args.env, n_envs=args.envs, seed=args.seed, vec_env_cls=DummyVecEnv)
    batch = args.envs * args.horizon
    model = SAC(
        "MlpPolicy",
        vector,
        learning_starts=args.warmup,
        train_freq=args.horizon,
        gradient_steps=-1,  # as many updates as steps
        batch_size=256,
        seed=args.seed,
        device="cpu",
    )
    recorder = Recorder()
    model.learn(args.warmup + batch * (args.batches + 1), callback=recorder)
    vector.close()
    # The first batch behind the random steps has the first updates, which allocate.
    marks = [mark for mark in recorder.marks if mark[2] > args.warmup + batch]
    wall_s, spent_s, steps = (b - a for a, b in zip(marks[0], marks[-1], strict=True))
    figures = {
        "peer": "stable-baselines3",
        "env_steps_per_s": round(steps / wall_s, 2),
        "cpu_s_per_step": round(spent_s / steps, 8),
        "steps": steps,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
