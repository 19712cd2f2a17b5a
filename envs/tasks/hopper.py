"""Hopper-v5: hop forward without falling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.sims import Sims
from rlinf_async.envs.tasks.runner import UprightRunnerRules
from rlinf_async.envs.tasks.terms import Within

_STATE_LIMIT = 100.0
_LOWEST = 0.7
_ANGLE_LIMIT = 0.2


class HopperRules(UprightRunnerRules):
    """Healthy is who is high enough and upright, with no coordinate beyond +-100."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._high_enough = Within(sims.qpos[:, 1], _LOWEST, np.inf)
        self._limited = sims.state[:, 2:]
        self._magnitudes = np.empty(self._limited.shape)

    def healthy(self) -> npt.NDArray[np.bool_]:
        """As in the class's description."""
        healthy, magnitudes = self._high_enough(), self._magnitudes
        np.absolute(self._limited, out=magnitudes)
        healthy &= np.maximum.reduce(magnitudes, axis=1) < _STATE_LIMIT
        healthy &= magnitudes[:, 0] < _ANGLE_LIMIT
        return healthy


TASK = BatchedTask(
    name="Hopper-v5",
    model_file="hopper.xml",
    frame_skip=4,
    time_limit=1000,
    rules=HopperRules,
    listed_contacts=True,
)
