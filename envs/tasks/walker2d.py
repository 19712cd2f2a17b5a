"""Walker2d-v5: walk forward on two legs without falling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.terms import (
    ControlCost,
    Velocity,
    Within,
    start_near_reference,
    state_spec,
)

_NOISE = 5e-3
_HEIGHTS = (0.8, 2.0)
_ANGLES = (-1.0, 1.0)
_SHOWN_SPEED = 10.0


class Walker2dRules(TaskRules):
    """The observation is the state without the root's x, velocities clipped to +-10."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._positions = sims.model.nq - 1
        self._visible = sims.state[:, 1:]
        self.observation = state_spec(self._visible.shape[1])
        self._high_enough = Within(sims.qpos[:, 1], *_HEIGHTS)
        self._upright = Within(sims.qpos[:, 2], *_ANGLES)
        self._velocity = Velocity(sims.qpos[:, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 1e-3)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions and velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE)

    def before_step(self, slots: Slots | None) -> None:
        """Remember the x position."""
        self._velocity.remember()

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: forward velocity, 1 for being healthy, less the control cost."""
        healthy = self._high_enough()
        healthy &= self._upright()
        self._velocity.write(outcome.reward)
        outcome.reward += healthy
        outcome.reward -= self._control_cost(action)
        np.logical_not(healthy, out=outcome.terminated)

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Positions, then velocities."""
        out["state"][...] = self._visible
        velocities = out["state"][:, self._positions :]
        np.maximum(velocities, -_SHOWN_SPEED, out=velocities)
        np.minimum(velocities, _SHOWN_SPEED, out=velocities)


TASK = BatchedTask(
    name="Walker2d-v5",
    model_file="walker2d_v5.xml",
    frame_skip=4,
    time_limit=1000,
    rules=Walker2dRules,
    listed_contacts=True,
)
