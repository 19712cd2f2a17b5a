"""ManiSkill 3 (Tao et al., 2024): maniskill/<Task>, such as maniskill/PickCube-v1.

SAPIEN needs a Vulkan device, also for observations without images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput, nearest


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments of one task; see `suites`.

    Raises:
        BadInput: no such task, or SAPIEN finds no device to render on.
    """
    import mani_skill.envs  # noqa: F401
    from mani_skill.utils.registration import REGISTERED_ENVS

    if task not in REGISTERED_ENVS:
        raise BadInput(
            f"environment 'maniskill/{task}'", "no such task", fix=nearest(task, REGISTERED_ENVS)
        )
    return lambda: make(task)


def make(task: str) -> Any:
    """One task as a `gymnasium.Env` without the batch axis of one and without tensors."""
    import gymnasium

    try:
        inner: Any = gymnasium.make(task, obs_mode="state", num_envs=1, disable_env_checker=True)
    except RuntimeError as cause:
        raise BadInput(
            f"environment 'maniskill/{task}'",
            f"SAPIEN cannot start: {cause}",
            fix="it needs a graphics card with a Vulkan driver",
        ) from cause

    class Single(gymnasium.Wrapper):  # type: ignore[misc]
        """Takes and gives plain arrays."""

        def __init__(self) -> None:
            super().__init__(inner)
            base = inner.unwrapped
            self.action_space = base.single_action_space
            self.observation_space = base.single_observation_space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            short = None if seed is None else seed % 2**32
            observation, _ = self.env.reset(seed=short, options=options)
            return _plain(observation), {}

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = self.env.step(action)
            told = {"success": bool(_plain(info["success"]))} if "success" in info else {}
            bits = bool(_plain(terminated)), bool(_plain(truncated))
            return _plain(observation), float(_plain(reward)), *bits, told

    return Single()


def _plain(value: Any) -> Any:
    """A tensor or array with a batch axis of one as a plain array without it."""
    array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return array[0] if array.ndim and len(array) == 1 else array
