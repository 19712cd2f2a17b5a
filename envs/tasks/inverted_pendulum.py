"""InvertedPendulum-v5: keep the pole upright."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.batched import BatchedTask, Floats, Sims

_NOISE = 0.01
_ANGLE_LIMIT = 0.2


class InvertedPendulumRules:
    """The observation is the whole state."""

    def __init__(self, sims: Sims) -> None:
        self._sims = sims
        self._angle = sims.qpos[:, 1]
        self.observation_size = sims.state.shape[1]
        self._finite = np.empty(sims.state.shape, np.bool_)

    def before_step(self) -> None:
        """The reward compares with nothing."""

    def judge(
        self,
        action: npt.NDArray[np.float32],
        reward: Floats,
        terminated: npt.NDArray[np.bool_],
    ) -> None:
        """Reward: 1 for every step that leaves the pole upright."""
        np.isfinite(self._sims.state, out=self._finite)
        np.logical_and.reduce(self._finite, axis=1, out=terminated)
        terminated &= np.absolute(self._angle) <= _ANGLE_LIMIT
        reward[...] = terminated
        np.logical_not(terminated, out=terminated)

    def observe(self, out: npt.NDArray[Any]) -> None:
        """Positions, then velocities."""
        out[...] = self._sims.state

    def draw(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Uniform noise on positions and velocities."""
        qpos = self._sims.init_qpos + rng.uniform(-_NOISE, _NOISE, self._sims.model.nq)
        return qpos, self._sims.init_qvel + rng.uniform(-_NOISE, _NOISE, self._sims.model.nv)

    def after_reset(self, slots: npt.NDArray[np.intp]) -> None:
        """Nothing is kept from an episode."""


TASK = BatchedTask(
    name="InvertedPendulum-v5",
    model_file="inverted_pendulum.xml",
    frame_skip=2,
    time_limit=1000,
    rules=InvertedPendulumRules,
)
