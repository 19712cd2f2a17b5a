"""Ant-v5: walk forward on four legs; contact forces are observed and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.contact_forces import ContactForces
from rlinf_async.envs.tasks.terms import (
    ControlCost,
    Velocity,
    start_near_reference,
    state_spec,
)

_NOISE = 0.1
_HEIGHTS = (0.2, 1.0)
_TORSO = 1
_CONTACT_WEIGHT = 5e-4
_FORCE_LIMIT = 1.0


class AntRules(TaskRules):
    """The observation is the state without the root's x and y, then the bodies' contact forces."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._visible = sims.state[:, 2:]
        self._split = self._visible.shape[1]
        self._forces = ContactForces(sims, limit=_FORCE_LIMIT)
        self._body_forces = self._forces.values[:, 6:]  # without the world's
        self.observation = state_spec(self._split + self._body_forces.shape[1])
        # The torso's x as derived, which is one simulation step behind the state's.
        self._velocity = Velocity(sims.derived("xpos", _TORSO, 0), sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 0.5)
        self._finite = np.empty(sims.state.shape, np.bool_)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions, normal noise on velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE, velocities="normal")

    def after_start(self, slots: Slots) -> None:
        """Forces of the ended episode are not seen in the next."""
        self._forces.clear(slots)

    def before_step(self, slots: Slots | None) -> None:
        """Remember the torso's x position."""
        self._velocity.remember()

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: forward velocity, 1 for being healthy, less control and contact costs."""
        self._forces.update(slots)
        cost = self._forces.cost(_CONTACT_WEIGHT)
        cost += self._control_cost(action)
        healthy = self._is_healthy()
        self._velocity.write(outcome.reward)
        outcome.reward += healthy
        outcome.reward -= cost
        np.logical_not(healthy, out=outcome.terminated)

    def _is_healthy(self) -> npt.NDArray[np.bool_]:
        """Finite, and the torso neither too low nor too high."""
        height = self.sims.qpos[:, 2]
        healthy: npt.NDArray[np.bool_] = height >= _HEIGHTS[0]
        healthy &= height <= _HEIGHTS[1]
        np.isfinite(self.sims.state, out=self._finite)
        if not self._finite.all():  # row by row it takes five times as long
            healthy &= self._finite.all(axis=1)
        return healthy

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Positions, velocities, forces."""
        out["state"][:, : self._split] = self._visible
        out["state"][:, self._split :] = self._body_forces


TASK = BatchedTask(
    name="Ant-v5",
    model_file="ant.xml",
    frame_skip=5,
    time_limit=1000,
    rules=AntRules,
    persistent=True,
    listed_contacts=True,
)
