"""InvertedPendulum-v5: keep the pole upright."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.envs.tasks.terms import start_near_reference, state_spec

_NOISE = 0.01
_ANGLE_LIMIT = 0.2


class InvertedPendulumRules(TaskRules):
    """The observation is the whole state."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._angle = sims.qpos[:, 1]
        self.observation = state_spec(sims.state.shape[1])
        self._finite = np.empty(sims.state.shape, np.bool_)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Uniform noise on positions and velocities."""
        start_near_reference(self.sims, slots, rngs, noise=_NOISE)

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Reward: 1 for every step that leaves the pole upright."""
        np.isfinite(self.sims.state, out=self._finite)
        upright = np.logical_and.reduce(self._finite, axis=1)
        upright &= np.absolute(self._angle) <= _ANGLE_LIMIT
        outcome.reward[...] = upright
        np.logical_not(upright, out=outcome.terminated)

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Positions, then velocities."""
        out["state"][...] = self.sims.state


TASK = BatchedTask(
    name="InvertedPendulum-v5",
    model_file="inverted_pendulum.xml",
    frame_skip=2,
    time_limit=1000,
    rules=InvertedPendulumRules,
    listed_contacts=True,
)
