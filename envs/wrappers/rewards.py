"""Wrappers that change rewards. Episode records count what comes out of the outermost wrapper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs
from rlinf_async.envs.wrappers.wrapped import WrappedCell
from rlinf_async.errors import BadInput

Rewards = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReward:
    """reward * scale + shift."""

    scale: float = 1.0
    shift: float = 0.0

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Rewards(cell, lambda reward: reward * self.scale + self.shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipReward:
    """Rewards within [low, high]."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise BadInput("ClipReward", "bounds", expected="low < high", got=(self.low, self.high))

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Rewards(cell, lambda reward: np.clip(reward, self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformReward:
    """A named function of rewards, float64 of any shape to the same shape."""

    function: Callable[[Rewards], Rewards]

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        return _Rewards(cell, self.function)


class _Rewards(WrappedCell):
    def __init__(self, cell: CellEnvs, change: Callable[[Rewards], Any]) -> None:
        super().__init__(cell)
        self._change = change

    def earn(self, reward: Rewards, stepped: npt.NDArray[np.bool_]) -> Rewards:
        """See `WrappedCell`."""
        return np.where(stepped, self._change(reward), 0.0)
