"""The DeepMind Control Suite (Tunyasuvunakool et al., 2020): dm_control/<domain>-<task>.

    dm_control/cheetah-run     observations `position`, `velocity`, ...; rewards within [0, 1]

Episodes last 1,000 control steps and are truncated, as the suite's discount of 1 says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput, nearest


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments of one task; see `suites`."""
    from dm_control import suite

    known = {f"{domain}-{name}": (domain, name) for domain, name in suite.ALL_TASKS}
    if task not in known:
        raise BadInput(f"environment 'dm_control/{task}'", "no such task", fix=nearest(task, known))
    domain, name = known[task]
    return lambda: make(domain, name)


def make(domain: str, name: str) -> Any:
    """One task as a `gymnasium.Env`; it is built anew for each seed, which is how it is seeded."""
    import gymnasium
    from dm_control import suite
    from gymnasium import spaces

    def load(seed: int) -> Any:
        return suite.load(domain, name, task_kwargs={"random": np.random.RandomState(seed)})

    def box(spec: Any) -> Any:
        size = spec.shape or (1,)
        return spaces.Box(-np.inf, np.inf, size, np.float64)

    class Control(gymnasium.Env):  # type: ignore[misc]
        """Observations keep the suite's names; numbers become vectors of one."""

        def __init__(self) -> None:
            self._env = load(0)
            action = self._env.action_spec()
            self.action_space = spaces.Box(
                np.broadcast_to(action.minimum, action.shape).astype(np.float32),
                np.broadcast_to(action.maximum, action.shape).astype(np.float32),
                dtype=np.float32,
            )
            self.observation_space = spaces.Dict(
                {key: box(spec) for key, spec in self._env.observation_spec().items()}
            )

        @property
        def model(self) -> Any:
            """MuJoCo's model, for whoever draws it."""
            return self._env.physics.model.ptr

        @property
        def data(self) -> Any:
            """MuJoCo's data."""
            return self._env.physics.data.ptr

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            if seed is not None:
                # Its tasks draw from a RandomState, whose seeds have 32 bits.
                self._env.task._random = np.random.RandomState(seed % 2**32)
            return self._flat(self._env.reset().observation), {}

        def step(self, action: Any) -> Any:
            taken = self._env.step(action)
            over, discount = taken.last(), taken.discount
            ended = over and discount == 0.0
            answer = self._flat(taken.observation), float(taken.reward or 0.0)
            return *answer, bool(ended), bool(over and not ended), {}

        def _flat(self, observation: Any) -> Any:
            return {key: np.atleast_1d(value) for key, value in observation.items()}

    return Control()
