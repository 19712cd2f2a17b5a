"""The tasks that `mujoco.batch` steps, by Gymnasium id; each module is imported when asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinf_async.envs.rules import BatchedTask

_MODULES = {
    "Ant-v5": "ant",
    "HalfCheetah-v5": "half_cheetah",
    "Hopper-v5": "hopper",
    "Humanoid-v5": "humanoid",
    "HumanoidStandup-v5": "humanoid_standup",
    "InvertedDoublePendulum-v5": "inverted_double_pendulum",
    "InvertedPendulum-v5": "inverted_pendulum",
    "Pusher-v5": "pusher",
    "Reacher-v5": "reacher",
    "Swimmer-v5": "swimmer",
    "Walker2d-v5": "walker2d",
}
BATCHED_IDS: tuple[str, ...] = tuple(_MODULES)


def batched_task(env_id: str) -> BatchedTask:
    """The record of one of `BATCHED_IDS`."""
    module = importlib.import_module(f"rlinf_async.envs.tasks.{_MODULES[env_id]}")
    task: BatchedTask = module.TASK
    return task
