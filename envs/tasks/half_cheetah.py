"""HalfCheetah-v5: run forward; never terminates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.terms import ControlCost, Velocity, start_near_reference, state_spec

_NOISE = 0.1


class HalfCheetahRules(TaskRules):
    """The observation is the state without the root's x."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._visible = sims.state[:, 1:]
        self.observation = state_spec(self._visible.shape[1])
        self._velocity = Velocity(sims.qpos[:, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 0.1)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions, normal noise on velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE, velocities="normal")

    def before_step(self, slots: Slots | None) -> None:
        """Remember the x position."""
        self._velocity.remember()

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: forward velocity less the control cost."""
        self._velocity.write(outcome.reward)
        outcome.reward -= self._control_cost(action)

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Positions, then velocities."""
        out["state"][...] = self._visible


TASK = BatchedTask(
    name="HalfCheetah-v5",
    model_file="half_cheetah.xml",
    frame_skip=5,
    time_limit=1000,
    rules=HalfCheetahRules,
    listed_contacts=True,
)
