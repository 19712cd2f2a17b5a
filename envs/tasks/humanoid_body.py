"""What the two humanoid tasks share: observation, start, contact forces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import TaskRules
from rlinf_async.envs.sims import Floats, Sims, Slots
from rlinf_async.envs.tasks.contact_forces import ContactForces
from rlinf_async.envs.tasks.terms import ControlCost, start_near_reference, state_spec

_NOISE = 0.01
_CONTACT_WEIGHT = 5e-7
_CONTACT_COST_LIMIT = 10.0
_ROOT_DOFS = 6


class HumanoidBodyRules(TaskRules):
    """The state without the root's x and y, then inertias, velocities, forces of the bodies."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        count = sims.count
        self._forces = ContactForces(sims)
        self._shown: tuple[Floats, ...] = (
            sims.state[:, 2:],
            _without_world(sims.derived("cinert")),
            _without_world(sims.derived("cvel")),
            sims.derived("qfrc_actuator")[:, _ROOT_DOFS:],
            self._forces.values[:, 6:],
        )
        self.observation = state_spec(sum(part.shape[1] for part in self._shown))
        self._control_cost = ControlCost(count, sims.model.nu, 0.1, np.float64)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions and velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE)

    def after_start(self, slots: Slots) -> None:
        """Forces of the ended episode are not seen in the next."""
        self._forces.clear(slots)

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """All parts, one behind the other."""
        np.concatenate(self._shown, axis=1, out=out["state"], casting="same_kind")

    def contact_cost(self) -> Floats:
        """At most 10, [n]."""
        cost = self._forces.cost(_CONTACT_WEIGHT)
        return np.minimum(cost, _CONTACT_COST_LIMIT, out=cost)

    def control_cost(self) -> npt.NDArray[np.floating]:
        """Of the simulations' controls, [n]."""
        return self._control_cost(self.sims.ctrl)


def _without_world(values: Floats) -> Floats:
    """Rows of all bodies but the first, [n, bodies, k] to a view [n, (bodies - 1) * k]."""
    return values.reshape(len(values), -1)[:, values.shape[2] :]
