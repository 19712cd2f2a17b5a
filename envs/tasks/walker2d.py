"""Walker2d-v5: walk forward on two legs without falling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.sims import Sims
from rlinf_async.envs.tasks.runner import UprightRunnerRules
from rlinf_async.envs.tasks.terms import Within

_HEIGHTS = (0.8, 2.0)
_ANGLES = (-1.0, 1.0)


class Walker2dRules(UprightRunnerRules):
    """Healthy is who is high enough and upright."""

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self._high_enough = Within(sims.qpos[:, 1], *_HEIGHTS)
        self._upright = Within(sims.qpos[:, 2], *_ANGLES)

    def healthy(self) -> npt.NDArray[np.bool_]:
        """As in the class's description."""
        healthy = self._high_enough()
        healthy &= self._upright()
        return healthy


TASK = BatchedTask(
    name="Walker2d-v5",
    model_file="walker2d_v5.xml",
    frame_skip=4,
    time_limit=1000,
    rules=Walker2dRules,
    listed_contacts=True,
)
