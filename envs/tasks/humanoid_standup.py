"""HumanoidStandup-v5: stand up from lying; never terminates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.sims import Slots
from rlinf_async.envs.tasks.humanoid_body import HumanoidBodyRules


class HumanoidStandupRules(HumanoidBodyRules):
    """Rewards the height of the torso."""

    ends_episodes = False

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: height over the simulation's time step, less control and contact costs, plus 1.

        The height is divided by the time step as if it had been gained within it: so in Gymnasium.
        """
        self._forces.update(slots)
        reward = outcome.reward
        np.divide(self.sims.qpos[:, 2], self.sims.model.opt.timestep, out=reward)
        reward -= self.control_cost()
        reward -= self.contact_cost()
        reward += 1


TASK = BatchedTask(
    name="HumanoidStandup-v5",
    model_file="humanoidstandup.xml",
    frame_skip=5,
    time_limit=1000,
    rules=HumanoidStandupRules,
    persistent=True,
    listed_contacts=True,
)
