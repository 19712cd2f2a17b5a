"""Environments: the contract of a cell, tasks on `mujoco.batch`, and an adapter for Gymnasium.

Names are imported when first used, so that importing this package loads no simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_async.envs.contract import CellEnvs, EnvMismatch, Observation, StepResult
    from rlinf_async.envs.registry import describe_env, make_cell
    from rlinf_async.envs.rules import BatchedTask, TaskRules
    from rlinf_async.envs.seeding import episode_seed
    from rlinf_async.envs.sims import Sims

__all__ = [
    "BatchedTask",
    "CellEnvs",
    "EnvMismatch",
    "Observation",
    "Sims",
    "StepResult",
    "TaskRules",
    "describe_env",
    "episode_seed",
    "make_cell",
]

_HOMES = {
    "BatchedTask": "rules",
    "CellEnvs": "contract",
    "EnvMismatch": "contract",
    "Observation": "contract",
    "Sims": "sims",
    "StepResult": "contract",
    "TaskRules": "rules",
    "describe_env": "registry",
    "episode_seed": "seeding",
    "make_cell": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
