"""Hopper-v5: hop forward without falling."""

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
_STATE_LIMIT = 100.0
_LOWEST = 0.7
_ANGLE_LIMIT = 0.2
_SHOWN_SPEED = 10.0


class HopperRules(TaskRules):
    """The observation is the state without the root's x, velocities clipped to +-10."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._positions = sims.model.nq - 1
        self._visible = sims.state[:, 1:]
        self.observation = state_spec(self._visible.shape[1])
        self._high_enough = Within(sims.qpos[:, 1], _LOWEST, np.inf)
        self._limited = sims.state[:, 2:]
        self._velocity = Velocity(sims.qpos[:, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 1e-3)
        self._magnitudes = np.empty(self._limited.shape)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions and velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE)

    def before_step(self, slots: Slots | None) -> None:
        """Remember the x position."""
        self._velocity.remember()

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: forward velocity, 1 for being healthy, less the control cost."""
        healthy = self._is_healthy()
        self._velocity.write(outcome.reward)
        outcome.reward += healthy
        outcome.reward -= self._control_cost(action)
        np.logical_not(healthy, out=outcome.terminated)

    def _is_healthy(self) -> npt.NDArray[np.bool_]:
        """High enough, upright, and no coordinate beyond +-100; NaN compares as unhealthy."""
        healthy, magnitudes = self._high_enough(), self._magnitudes
        np.absolute(self._limited, out=magnitudes)
        healthy &= np.maximum.reduce(magnitudes, axis=1) < _STATE_LIMIT
        healthy &= magnitudes[:, 0] < _ANGLE_LIMIT
        return healthy

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Positions, then velocities."""
        out["state"][...] = self._visible
        velocities = out["state"][:, self._positions :]
        np.maximum(velocities, -_SHOWN_SPEED, out=velocities)
        np.minimum(velocities, _SHOWN_SPEED, out=velocities)


TASK = BatchedTask(
    name="Hopper-v5",
    model_file="hopper.xml",
    frame_skip=4,
    time_limit=1000,
    rules=HopperRules,
    listed_contacts=True,
)
