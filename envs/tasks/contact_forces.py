"""External forces on the bodies of a model, as Gymnasium's tasks observe them."""

from __future__ import annotations

import numpy as np

from rlinf_async.envs.sims import Floats, Sims, Slots


class ContactForces:
    """`cfrc_ext` of each body, [n, nbody * 6] with the world first, clipped to +-`limit`.

    They are no part of the state: `mj_rnePostConstraint` derives them from the contacts of the last
    simulation step, which only a persistent batch keeps. A sensor in the model that needs them
    would not do: with the Runge-Kutta integrator it sees the contacts of the step's first stage,
    and Gymnasium those of its last. A new episode begins with zeros.
    """

    def __init__(self, sims: Sims, *, limit: float | None = None) -> None:
        import mujoco

        if not sims.batch.persistent:
            raise ValueError("contact forces need a task with persistent=True")
        self._batch, self._model, self._limit = sims.batch, sims.model, limit
        self._contacts = sims.batch.bind("ncon")
        self._derive = mujoco.mj_rnePostConstraint
        self._data = mujoco.MjData(sims.model)
        self._force = self._data.cfrc_ext.reshape(-1)
        self.values: Floats = sims.keep("contact_forces", (self._force.size,))
        self._squares = np.empty(self.values.shape)

    def update(self, slots: Slots | None) -> None:
        """Derive the forces after a step of `slots` (None: all)."""
        touching = np.flatnonzero(self._contacts)
        if slots is None:
            self.values[...] = 0.0
        else:
            self.values[slots] = 0.0
            touching = np.intersect1d(touching, slots, assume_unique=True)
        # Without a contact nothing acts on a body: these models have no equality constraints.
        for slot in touching.tolist():
            self._batch.get_data(slot, self._data)
            self._derive(self._model, self._data)
            self.values[slot] = self._force
        if self._limit is not None:
            np.maximum(self.values, -self._limit, out=self.values)
            np.minimum(self.values, self._limit, out=self.values)

    def cost(self, weight: float) -> Floats:
        """`weight` times the sum of squared forces, [n]."""
        np.square(self.values, out=self._squares)
        summed: Floats = np.add.reduce(self._squares, axis=1)
        summed *= weight
        return summed

    def clear(self, slots: Slots) -> None:
        """Forces of ended episodes are not seen in the next."""
        self.values[slots] = 0.0
