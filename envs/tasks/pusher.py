"""Pusher-v5: push an object to a goal with an arm of seven joints."""

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

_SPEED_NOISE = 0.005
_JOINTS = 7
_BODIES = ("tips_arm", "object", "goal")
_LEAST_DISTANCE = 0.17
_NEAR_WEIGHT = 0.5


class PusherRules(TaskRules):
    """Positions, velocities of the arm's joints; positions of its tip, the object and the goal."""

    ends_episodes = False

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self.observation = state_spec(2 * _JOINTS + 3 * len(_BODIES))
        self._positions = sims.derived("xpos")
        self._bodies = [body_number(sims, name) for name in _BODIES]
        self._control_cost = ControlCost(sims.count, sims.model.nu, 0.1)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """An object not too near to the goal; uniform noise on the arm's velocities."""
        sims = self.sims
        for slot, rng in zip(slots.tolist(), rngs, strict=True):
            qpos = sims.init_qpos.copy()
            qpos[-4:-2] = _draw_object(rng)
            qpos[-2:] = 0.0
            qvel = sims.init_qvel + rng.uniform(-_SPEED_NOISE, _SPEED_NOISE, sims.model.nv)
            qvel[-4:] = 0.0
            sims.qpos[slot], sims.qvel[slot] = qpos, qvel

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: less the object's distances to the goal and the tip, and the control cost."""
        tip, thing, goal = (self._positions[:, body] for body in self._bodies)
        np.negative(length(thing - goal), out=outcome.reward)
        outcome.reward -= self._control_cost(action)
        outcome.reward -= length(thing - tip) * _NEAR_WEIGHT

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Twenty-three numbers."""
        state = out["state"]
        state[:, :_JOINTS] = self.sims.qpos[:, :_JOINTS]
        state[:, _JOINTS : 2 * _JOINTS] = self.sims.qvel[:, :_JOINTS]
        for place, body in enumerate(self._bodies):
            begin = 2 * _JOINTS + 3 * place
            state[:, begin : begin + 3] = self._positions[:, body]


def _draw_object(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    while True:
        place = np.concatenate([rng.uniform(-0.3, 0, 1), rng.uniform(-0.2, 0.2, 1)])
        if np.linalg.norm(place) > _LEAST_DISTANCE:
            return place


TASK = BatchedTask(
    name="Pusher-v5",
    model_file="pusher_v5.xml",
    frame_skip=5,
    time_limit=100,
    rules=PusherRules,
)
