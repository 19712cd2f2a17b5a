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

# axes of einsum: b bodies, j coordinates of all slots

_HEIGHTS = (1.0, 2.0)
_FORWARD_WEIGHT = 1.25
_HEALTHY = 5.0


class HumanoidRules(HumanoidBodyRules):
    """Rewards the forward velocity of the centre of mass and standing."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._places = sims.derived("xipos")
        self._masses = sims.model.body_mass.copy()
        self._centres = np.empty((sims.count, 3))
        self._velocity = Velocity(self._centres[:, 0], sims.dt)
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
        """The bodies' mean position, weighted by mass, with the bits of Gymnasium's einsum.

        It adds body after body to all coordinates; for a single coordinate it would be a dot
        product, in another order: so all three are summed though only x is needed.
        """
        places: Floats = np.ascontiguousarray(self._places.swapaxes(0, 1))
        flat = places.reshape(len(self._masses), -1)
        np.einsum("b,bj->j", self._masses, flat, out=self._centres.reshape(-1))
        self._centres /= self._masses.sum()


TASK = BatchedTask(
    name="Humanoid-v5",
    model_file="humanoid.xml",
    frame_skip=5,
    time_limit=1000,
    rules=HumanoidRules,
    persistent=True,
    listed_contacts=True,
)
