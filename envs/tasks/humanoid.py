"""Humanoid-v5: walk forward on two legs without falling."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.sims import Floats, Sims, Slots
from rlinf_async.envs.tasks.humanoid_body import HumanoidBodyRules
from rlinf_async.envs.tasks.terms import Velocity, Within

# axes: n slots of the cell, b bodies

_HEIGHTS = (1.0, 2.0)
_FORWARD_WEIGHT = 1.25
_HEALTHY = 5.0


class HumanoidRules(HumanoidBodyRules):
    """Rewards the forward velocity of the centre of mass and standing."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._body_x = sims.derived("xipos")[:, :, 0]
        self._masses = sims.model.body_mass.copy()
        self._centre_x = np.empty(sims.count)
        self._velocity = Velocity(self._centre_x, sims.dt)
        self._high_enough = Within(sims.qpos[:, 2], *_HEIGHTS)

    def before_step(self, slots: Slots | None) -> None:
        """Remember where the centre of mass is."""
        self._find_centre()
        self._velocity.remember()

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: forward velocity, 5 for being healthy, less control and contact costs."""
        self._forces.update(slots)
        self._find_centre()
        healthy, reward = self._high_enough(), outcome.reward
        self._velocity.write(reward)
        reward *= _FORWARD_WEIGHT
        reward += healthy * _HEALTHY
        reward -= self.control_cost() + self.contact_cost()
        np.logical_not(healthy, out=outcome.terminated)

    def _find_centre(self) -> None:
        """The bodies' mean x, weighted by mass, summed in the order that Gymnasium's einsum has."""
        places_bn: Floats = np.ascontiguousarray(self._body_x.T)
        np.einsum("b,bn->n", self._masses, places_bn, out=self._centre_x)
        self._centre_x /= self._masses.sum()


TASK = BatchedTask(
    name="Humanoid-v5",
    model_file="humanoid.xml",
    frame_skip=5,
    time_limit=1000,
    rules=HumanoidRules,
    persistent=True,
)
