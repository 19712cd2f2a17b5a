"""External forces on the bodies of a model, as Gymnasium's tasks observe them."""

from __future__ import annotations

import numpy as np

from rlinf_async.envs.mujoco_library import ContactForceCall
from rlinf_async.envs.sims import Floats, Sims, Slots


class ContactForces:
    """`cfrc_ext` of each body, [n, nbody * 6] with the world first, clipped to +-`limit`.

    They are no part of the state: `mj_rnePostConstraint` derives them from the contacts of the last
    simulation step, which only a persistent batch keeps. A sensor in the model that needs them
    would not do: with the Runge-Kutta integrator it sees the contacts of the step's first stage,
    and Gymnasium those of its last. A new episode begins with zeros.
    """

    def __init__(self, sims: Sims, *, limit: float | None = None) -> None:
        if not sims.batch.persistent:
            raise ValueError("contact forces need a task with persistent=True")
        self._limit, self._contacts = limit, sims.batch.bind("ncon")
        try:
            self._derive: _InPlace | _OnCopies = _InPlace(sims)
        except LookupError:
            self._derive = _OnCopies(sims)
        self.values: Floats = sims.keep("contact_forces", (sims.model.nbody * 6,))
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
        if touching.size:
            self.values[touching] = self._derive(touching)
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


class _InPlace:
    """The forces of some slots, derived where the batch keeps the simulations."""

    def __init__(self, sims: Sims) -> None:
        self._call = ContactForceCall(sims.batch)
        self._forces: Floats = sims.batch.bind("cfrc_ext").reshape(sims.count, -1)

    def __call__(self, slots: Slots) -> Floats:
        self._call(slots.astype(np.int32))
        return self._forces[slots]


class _OnCopies:
    """The same on copies of the simulations, by the bindings alone."""

    def __init__(self, sims: Sims) -> None:
        import mujoco

        self._batch, self._model = sims.batch, sims.model
        self._derive = mujoco.mj_rnePostConstraint
        self._copy = mujoco.MjData(sims.model)

    def __call__(self, slots: Slots) -> Floats:
        forces = np.empty((len(slots), self._copy.cfrc_ext.size))
        for row, slot in enumerate(slots.tolist()):
            self._batch.get_data(slot, self._copy)
            self._derive(self._model, self._copy)
            forces[row] = self._copy.cfrc_ext.reshape(-1)
        return forces
