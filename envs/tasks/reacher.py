"""Reacher-v5: bring the tip of a two-link arm to a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.terms import ControlCost, body_number, length, state_spec

_NOISE = 0.1
_SPEED_NOISE = 0.005
_TARGET_RADIUS = 0.2


class ReacherRules(TaskRules):
    """Cosines, sines of the joints; target; joint velocities; from the target to the fingertip."""

    ends_episodes = False

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self.observation = state_spec(10)
        self._positions = sims.derived("xpos")
        self._tip, self._target = (body_number(sims, name) for name in ("fingertip", "target"))
        self._control_cost = ControlCost(sims.count, sims.model.nu, 1.0)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """A target uniform in a disc; uniform noise on joints and their velocities."""
        sims = self.sims
        for slot, rng in zip(slots.tolist(), rngs, strict=True):
            qpos = rng.uniform(-_NOISE, _NOISE, sims.model.nq) + sims.init_qpos
            qpos[-2:] = _draw_target(rng)
            qvel = sims.init_qvel + rng.uniform(-_SPEED_NOISE, _SPEED_NOISE, sims.model.nv)
            qvel[-2:] = 0.0
            sims.qpos[slot], sims.qvel[slot] = qpos, qvel

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: less the distance to the target and the control cost."""
        np.negative(length(self._from_target()), out=outcome.reward)
        outcome.reward -= self._control_cost(action)

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Ten numbers."""
        state, joints = out["state"], np.ascontiguousarray(self.sims.qpos[:, :2])
        state[:, :2] = np.cos(joints)
        state[:, 2:4] = np.sin(joints)
        state[:, 4:6] = self.sims.qpos[:, 2:]
        state[:, 6:8] = self.sims.qvel[:, :2]
        state[:, 8:] = self._from_target()[:, :2]

    def _from_target(self) -> npt.NDArray[np.float64]:
        vectors: npt.NDArray[np.float64] = (
            self._positions[:, self._tip] - self._positions[:, self._target]
        )
        return vectors


def _draw_target(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    while True:
        target = rng.uniform(-_TARGET_RADIUS, _TARGET_RADIUS, 2)
        if np.linalg.norm(target) < _TARGET_RADIUS:
            return target


TASK = BatchedTask(
    name="Reacher-v5",
    model_file="reacher.xml",
    frame_skip=2,
    time_limit=50,
    rules=ReacherRules,
)
