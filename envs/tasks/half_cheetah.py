"""HalfCheetah-v5: run forward; never terminates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.batched import BatchedTask, Floats, Sims
from rlinf_async.envs.tasks.terms import ControlCost, Velocity

_NOISE = 0.1


class HalfCheetahRules:
    """The observation is the state without the root's x."""

    def __init__(self, sims: Sims) -> None:
        self._sims = sims
        self._visible = sims.state[:, 1:]
        self.observation_size = self._visible.shape[1]
        self._velocity = Velocity(sims.qpos[:, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 0.1)

    def before_step(self) -> None:
        """Remember the x position."""
        self._velocity.remember()

    def judge(
        self,
        action: npt.NDArray[np.float32],
        reward: Floats,
        terminated: npt.NDArray[np.bool_],
    ) -> None:
        """Reward: forward velocity less the control cost."""
        self._velocity.write(reward)
        reward -= self._control_cost(action)

    def observe(self, out: npt.NDArray[Any]) -> None:
        """Positions, then velocities."""
        out[...] = self._visible

    def draw(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Uniform noise on positions, normal noise on velocities."""
        qpos = self._sims.init_qpos + rng.uniform(-_NOISE, _NOISE, self._sims.model.nq)
        return qpos, self._sims.init_qvel + _NOISE * rng.standard_normal(self._sims.model.nv)

    def after_reset(self, slots: npt.NDArray[np.intp]) -> None:
        """Nothing is kept from an episode."""


TASK = BatchedTask(
    name="HalfCheetah-v5",
    model_file="half_cheetah.xml",
    frame_skip=5,
    time_limit=1000,
    rules=HalfCheetahRules,
)
