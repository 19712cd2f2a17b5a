"""Terms that the rewards of Gymnasium's MuJoCo tasks share, over all slots and into own buffers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# axes: n slots of the cell, A action
Floats = npt.NDArray[np.float64]


class Velocity:
    """Mean velocity of a coordinate over one step, from its live view [n]."""

    def __init__(self, position: Floats, dt: float) -> None:
        self._position, self._dt = position, dt
        self._before = np.empty(len(position))

    def remember(self) -> None:
        """Note the position from which the next step starts."""
        np.copyto(self._before, self._position)

    def write(self, out: Floats) -> None:
        """Write the velocity of the step just made into `out` [n]."""
        np.subtract(self._position, self._before, out=out)
        out /= self._dt


class ControlCost:
    """`weight` times the sum of squared actions, in float32 as Gymnasium computes it."""

    def __init__(self, count: int, actions: int, weight: float) -> None:
        self._squares = np.empty((count, actions), np.float32)
        self._cost = np.empty(count, np.float32)
        self._weight = weight

    def __call__(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Cost [n] of `action` [n, A]; the array is reused by the next call."""
        np.square(action, out=self._squares)
        np.add.reduce(self._squares, axis=1, out=self._cost)
        self._cost *= self._weight
        return self._cost
