"""Hopper-v5: hop forward without falling."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.batched import BatchedTask, Floats, Sims
from rlinf_async.envs.tasks.terms import ControlCost, Velocity

_NOISE = 5e-3
_STATE_LIMIT = 100.0
_LOWEST = 0.7
_ANGLE_LIMIT = 0.2
_SHOWN_SPEED = 10.0


class HopperRules:
    """The observation is the state without the root's x, velocities clipped to +-10."""

    def __init__(self, sims: Sims) -> None:
        self._sims = sims
        self._positions = sims.model.nq - 1
        self._visible = sims.state[:, 1:]
        self.observation_size = self._visible.shape[1]
        self._height, self._limited = sims.qpos[:, 1], sims.state[:, 2:]
        self._velocity = Velocity(sims.qpos[:, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 1e-3)
        self._magnitudes = np.empty(self._limited.shape)
        self._healthy = np.empty(sims.count, np.bool_)

    def before_step(self) -> None:
        """Remember the x position."""
        self._velocity.remember()

    def judge(
        self,
        action: npt.NDArray[np.float32],
        reward: Floats,
        terminated: npt.NDArray[np.bool_],
    ) -> None:
        """Reward: forward velocity, 1 for being healthy, less the control cost."""
        healthy = self._is_healthy()
        self._velocity.write(reward)
        reward += healthy
        reward -= self._control_cost(action)
        np.logical_not(healthy, out=terminated)

    def _is_healthy(self) -> npt.NDArray[np.bool_]:
        """High enough, upright, and no coordinate beyond +-100; NaN compares as unhealthy."""
        healthy, magnitudes = self._healthy, self._magnitudes
        np.absolute(self._limited, out=magnitudes)
        np.less(np.maximum.reduce(magnitudes, axis=1), _STATE_LIMIT, out=healthy)
        healthy &= magnitudes[:, 0] < _ANGLE_LIMIT
        healthy &= self._height > _LOWEST
        healthy &= self._height < np.inf
        return healthy

    def observe(self, out: npt.NDArray[Any]) -> None:
        """Positions, then velocities."""
        out[...] = self._visible
        velocities = out[:, self._positions :]
        np.maximum(velocities, -_SHOWN_SPEED, out=velocities)
        np.minimum(velocities, _SHOWN_SPEED, out=velocities)

    def draw(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Uniform noise on positions and velocities."""
        qpos = self._sims.init_qpos + rng.uniform(-_NOISE, _NOISE, self._sims.model.nq)
        return qpos, self._sims.init_qvel + rng.uniform(-_NOISE, _NOISE, self._sims.model.nv)

    def after_reset(self, slots: npt.NDArray[np.intp]) -> None:
        """Nothing is kept from an episode."""


TASK = BatchedTask(
    name="Hopper-v5",
    model_file="hopper.xml",
    frame_skip=4,
    time_limit=1000,
    rules=HopperRules,
)
