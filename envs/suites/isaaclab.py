"""Isaac Lab: isaaclab/<Task>, such as isaaclab/Isaac-Cartpole-v0; all slots of a cell on one GPU.

Isaac Sim is an application that must be started before anything else is imported, and it needs an
NVIDIA GPU. Its environments are vectors that reset themselves in the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput, nearest


def factory(task: str, first_slot: int) -> Callable[..., Any]:
    """A function that makes one vector environment of `num_envs` slots; see `suites`.

    Raises:
        BadInput: there is no GPU, or no such task.
    """
    from isaaclab.app import AppLauncher

    if not _has_gpu():
        raise BadInput(
            f"environment 'isaaclab/{task}'",
            "Isaac Sim needs an NVIDIA GPU, and this machine shows none",
            fix="use a machine with one",
        )
    AppLauncher(headless=True)
    import gymnasium
    import isaaclab_tasks  # noqa: F401

    known = [name for name in gymnasium.registry if name.startswith("Isaac-")]
    if task not in known:
        raise BadInput(f"environment 'isaaclab/{task}'", "no such task", fix=nearest(task, known))

    def vector(num_envs: int) -> Any:
        return make(task, num_envs)

    return vector


def make(task: str, num_envs: int) -> Any:
    """`num_envs` simulations as a `gymnasium.vector.VectorEnv` of plain arrays."""
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from isaaclab_tasks.utils import parse_env_cfg

    config = parse_env_cfg(task, device="cuda:0", num_envs=num_envs)
    inner: Any = gymnasium.make(task, cfg=config)

    class Plain(VectorEnv):  # type: ignore[misc]
        """Tensors become arrays; the policy's group is the observation."""

        def __init__(self) -> None:
            self.num_envs = num_envs
            base = inner.unwrapped
            self.single_observation_space = base.single_observation_space["policy"]
            self.single_action_space = base.single_action_space
            self.observation_space = base.observation_space["policy"]
            self.action_space = base.action_space
            self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            first = seed[0] if isinstance(seed, list | tuple | np.ndarray) else seed
            short = None if first is None else int(first) % 2**31
            observation, _ = inner.reset(seed=short)
            return _plain(observation["policy"]), {}

        def step(self, actions: Any) -> Any:
            import torch

            taken = torch.from_numpy(np.asarray(actions, np.float32)).to("cuda:0")
            observation, reward, terminated, truncated, _ = inner.step(taken)
            parts = (observation["policy"], reward, terminated, truncated)
            return *(_plain(part) for part in parts), {}

        def close_extras(self, **kwargs: Any) -> None:
            inner.close()

    return Plain()


def _has_gpu() -> bool:
    from pathlib import Path

    return Path("/proc/driver/nvidia/gpus").exists()


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()
