"""Meta-World's scripted experts for many slots at once, as a record that travels to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.suites.metaworld import expert

_one_expert = cache(expert)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaWorldExpert:
    """The expert of one task; works in the suite's interpreter only."""

    task: str
    """Such as `reach-v3`."""

    def __call__(self, observation: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Actions [n, 4] for observations whose `state` is [n, 39]."""
        act = _one_expert(self.task)
        return np.stack([act(state) for state in observation["state"]])
