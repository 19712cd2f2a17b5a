"""Ant-v5: walk forward on four legs; contact forces are observed and cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.batched import BatchedTask, Floats, Sims
from rlinf_async.envs.tasks.terms import ControlCost, Velocity

_NOISE = 0.1
_HEIGHTS = (0.2, 1.0)
_TORSO = 1
_CONTACT_WEIGHT = 5e-4
_FORCE_LIMIT = 1.0


class ContactForces:
    """External force on each body, [n, nbody * 6], clipped to +-1.

    They are no part of the state: `mj_rnePostConstraint` derives them from the contacts of the last
    simulation step, which only a persistent batch keeps. A reset leaves zeros.
    """

    def __init__(self, sims: Sims) -> None:
        import mujoco

        self._batch, self._model = sims.batch, sims.model
        self._contacts = sims.batch.bind("ncon")
        self._derive = mujoco.mj_rnePostConstraint
        self._data = mujoco.MjData(sims.model)
        self._force = self._data.cfrc_ext.reshape(-1)
        self.clipped = np.zeros((sims.count, self._force.size))

    def update(self) -> None:
        """Derive the forces after a step."""
        batch, model, data, clipped = self._batch, self._model, self._data, self.clipped
        clipped[...] = 0.0
        # Without a contact nothing acts on a body: the model has no equality constraints.
        for slot in np.flatnonzero(self._contacts).tolist():
            batch.get_data(slot, data)
            self._derive(model, data)
            clipped[slot] = self._force
        np.maximum(clipped, -_FORCE_LIMIT, out=clipped)
        np.minimum(clipped, _FORCE_LIMIT, out=clipped)


class AntRules:
    """The observation is the state without the root's x and y, then the bodies' contact forces."""

    def __init__(self, sims: Sims) -> None:
        self._sims = sims
        self._visible = sims.state[:, 2:]
        self._split = self._visible.shape[1]
        self._forces = ContactForces(sims)
        self._body_forces = self._forces.clipped[:, 6:]  # without the world's
        self.observation_size = self._split + self._body_forces.shape[1]
        # The torso's x as derived, which is one simulation step behind the state's.
        self._velocity = Velocity(sims.batch.bind("xpos")[:, _TORSO, 0], sims.dt)
        self._control_cost = ControlCost(sims.count, sims.model.nu, 0.5)
        self._squares = np.empty(self._forces.clipped.shape)
        self._contact_cost = np.empty(sims.count)
        self._finite = np.empty(sims.state.shape, np.bool_)
        self._healthy = np.empty(sims.count, np.bool_)

    def before_step(self) -> None:
        """Remember the torso's x position."""
        self._velocity.remember()

    def judge(
        self,
        action: npt.NDArray[np.float32],
        reward: Floats,
        terminated: npt.NDArray[np.bool_],
    ) -> None:
        """Reward: forward velocity, 1 for being healthy, less control and contact costs."""
        self._forces.update()
        cost = self._contact_cost
        np.square(self._forces.clipped, out=self._squares)
        np.add.reduce(self._squares, axis=1, out=cost)
        cost *= _CONTACT_WEIGHT
        cost += self._control_cost(action)
        healthy = self._is_healthy()
        self._velocity.write(reward)
        reward += healthy
        reward -= cost
        np.logical_not(healthy, out=terminated)

    def _is_healthy(self) -> npt.NDArray[np.bool_]:
        """Finite, and the torso neither too low nor too high."""
        healthy, height = self._healthy, self._sims.qpos[:, 2]
        np.isfinite(self._sims.state, out=self._finite)
        np.logical_and.reduce(self._finite, axis=1, out=healthy)
        healthy &= height >= _HEIGHTS[0]
        healthy &= height <= _HEIGHTS[1]
        return healthy

    def observe(self, out: npt.NDArray[Any]) -> None:
        """Positions, velocities, forces."""
        out[:, : self._split] = self._visible
        out[:, self._split :] = self._body_forces

    def draw(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Uniform noise on positions, normal noise on velocities."""
        qpos = self._sims.init_qpos + rng.uniform(-_NOISE, _NOISE, self._sims.model.nq)
        return qpos, self._sims.init_qvel + _NOISE * rng.standard_normal(self._sims.model.nv)

    def after_reset(self, slots: npt.NDArray[np.intp]) -> None:
        """Forces of the ended episode are not seen in the next."""
        self._forces.clipped[slots] = 0.0


TASK = BatchedTask(
    name="Ant-v5",
    model_file="ant.xml",
    frame_skip=5,
    time_limit=1000,
    rules=AntRules,
    persistent=True,
)
