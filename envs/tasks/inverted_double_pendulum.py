"""InvertedDoublePendulum-v5: keep two linked poles upright on a cart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.terms import scalar_squares, start_near_reference, state_spec

_NOISE = 0.1
_ALIVE = 10.0
_LOWEST_TIP = 1.0
_SHOWN = 10.0


class InvertedDoublePendulumRules(TaskRules):
    """Cart position; sines, cosines of both angles; velocities; constraint force on the cart."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self.observation = state_spec(9)
        self._tip_x = sims.derived("site_xpos", 0, 0)
        self._tip_height = sims.derived("site_xpos", 0, 2)
        self._constraint_force = sims.derived("qfrc_constraint", 0)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions, normal noise on velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE, velocities="normal")

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: 10 for a tip above 1, less its distance from upright and the poles' speeds."""
        x, height, velocity = self._tip_x, self._tip_height, self.sims.qvel
        np.less_equal(height, _LOWEST_TIP, out=outcome.terminated)
        distance = 0.01 * scalar_squares(x) + scalar_squares(height - 2)
        speed = 0.001 * scalar_squares(velocity[:, 1]) + 0.005 * scalar_squares(velocity[:, 2])
        outcome.reward[...] = _ALIVE * ~outcome.terminated - distance - speed

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Nine numbers; velocities and force clipped to +-10."""
        state, angles = out["state"], np.ascontiguousarray(self.sims.qpos[:, 1:])
        state[:, :1] = self.sims.qpos[:, :1]
        state[:, 1:3] = np.sin(angles)
        state[:, 3:5] = np.cos(angles)
        state[:, 5:8] = np.clip(self.sims.qvel, -_SHOWN, _SHOWN)
        state[:, 8] = np.clip(self._constraint_force, -_SHOWN, _SHOWN)


TASK = BatchedTask(
    name="InvertedDoublePendulum-v5",
    model_file="inverted_double_pendulum.xml",
    frame_skip=5,
    time_limit=1000,
    rules=InvertedDoublePendulumRules,
    listed_contacts=True,
)
