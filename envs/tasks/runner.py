"""What Gymnasium's planar runners share: move forward, at little cost, some without falling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.terms import ControlCost, Velocity, start_near_reference, state_spec

# axes: n slots of the cell, A action
_SHOWN_SPEED = 10.0


class RunnerRules(TaskRules):
    """The observation is the state without the root's first coordinates; never terminates."""

    ends_episodes = False
    unseen: ClassVar[int] = 1
    """Coordinates of the root, from x on, that are not observed."""
    noise: ClassVar[float] = 0.1
    """Of the initial positions and velocities."""
    velocities: ClassVar[Literal["uniform", "normal"]] = "uniform"
    """How initial velocities are drawn."""
    control_weight: ClassVar[float]
    """Of the sum of squared actions in the reward."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._visible = sims.state[:, self.unseen :]
        self.observation = state_spec(self._visible.shape[1])
        self._velocity = Velocity(sims.qpos[:, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, self.control_weight)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Noise on positions and velocities."""
        start_near_reference(self.sims, slots, rngs, noise=self.noise, velocities=self.velocities)

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


class UprightRunnerRules(RunnerRules):
    """Also paid for being healthy, and ends where it is not; velocities are shown up to +-10."""

    ends_episodes = True
    noise: ClassVar[float] = 5e-3
    control_weight: ClassVar[float] = 1e-3

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._positions = sims.model.nq - self.unseen

    def healthy(self) -> npt.NDArray[np.bool_]:
        """Which slots have not fallen, [n]; NaN has to compare as fallen."""
        raise NotImplementedError

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: forward velocity, 1 for being healthy, less the control cost."""
        healthy = self.healthy()
        self._velocity.write(outcome.reward)
        outcome.reward += healthy
        outcome.reward -= self._control_cost(action)
        np.logical_not(healthy, out=outcome.terminated)

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Positions, then velocities."""
        super().observe(out, slots)
        velocities = out["state"][:, self._positions :]
        np.maximum(velocities, -_SHOWN_SPEED, out=velocities)
        np.minimum(velocities, _SHOWN_SPEED, out=velocities)
