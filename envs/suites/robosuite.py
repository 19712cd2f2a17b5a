"""robosuite (Zhu et al., 2020): robosuite/<Task>, a Panda arm under its default controller.

    robosuite/Lift, robosuite/Door, robosuite/Stack, ...    observation `state`

State only: the proprioception and the objects, side by side. An episode has 500 control steps of
20 Hz; success is what the task itself checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput, nearest

HORIZON = 500


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments of one task; see `suites`."""
    import robosuite

    known = list(robosuite.ALL_ENVIRONMENTS)
    if task not in known:
        raise BadInput(f"environment 'robosuite/{task}'", "no such task", fix=nearest(task, known))
    return lambda: make(task)


def make(task: str) -> Any:
    """One task as a `gymnasium.Env`."""
    import gymnasium
    import robosuite
    from gymnasium import spaces

    class Suite(gymnasium.Env):  # type: ignore[misc]
        """`state` is the robot's and the objects' part of the observation."""

        def __init__(self) -> None:
            self._env = robosuite.make(
                task,
                robots="Panda",
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                use_object_obs=True,
                reward_shaping=True,
                control_freq=20,
                horizon=HORIZON,
            )
            low, high = self._env.action_spec
            self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
            size = self._flat(self._env.reset()).shape
            self.observation_space = spaces.Box(-np.inf, np.inf, size, np.float64)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            if seed is not None:
                # Placements and noise are drawn from the environment's own generator.
                self._env.rng = np.random.default_rng(seed)
                for sampler in _samplers(self._env):
                    sampler.rng = self._env.rng
            return self._flat(self._env.reset()), {}

        def step(self, action: Any) -> Any:
            observation, reward, over, _ = self._env.step(action)
            success = bool(self._env._check_success())
            return self._flat(observation), float(reward), False, bool(over), {"success": success}

        def close(self) -> None:
            self._env.close()

        def _flat(self, observation: Any) -> Any:
            parts = [observation["robot0_proprio-state"], observation["object-state"]]
            return np.concatenate([np.ravel(part) for part in parts])

    return Suite()


def _samplers(env: Any) -> list[Any]:
    """The samplers that place the objects, nested ones included."""
    outer = getattr(env, "placement_initializer", None)
    if outer is None:
        return []
    return [outer, *getattr(outer, "samplers", {}).values()]
