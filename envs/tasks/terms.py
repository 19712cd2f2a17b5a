"""Terms that Gymnasium's MuJoCo tasks share, over all slots and into own buffers.

Each does Gymnasium's operations in Gymnasium's order and precision, so that bits agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.sims import Floats, Sims, Slots
from rlinf_async.execution.spaces import ArraySpec

# axes: n slots of the cell, A action


def state_spec(size: int) -> tuple[ArraySpec, ...]:
    """One observation `state` of `size` numbers."""
    return (ArraySpec(name="state", shape=(size,), dtype="float32"),)


def start_near_reference(
    sims: Sims,
    slots: Slots,
    rngs: Sequence[np.random.Generator],
    *,
    noise: float,
    velocities: Literal["uniform", "normal"] = "uniform",
) -> None:
    """Positions uniform within `noise` of the reference; velocities likewise, or normal."""
    nq, nv = sims.model.nq, sims.model.nv
    for slot, rng in zip(slots.tolist(), rngs, strict=True):
        sims.qpos[slot] = sims.init_qpos + rng.uniform(-noise, noise, nq)
        if velocities == "uniform":
            sims.qvel[slot] = sims.init_qvel + rng.uniform(-noise, noise, nv)
        else:
            sims.qvel[slot] = sims.init_qvel + noise * rng.standard_normal(nv)


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
    """`weight` times the sum of squared actions, in the precision of the actions.

    Gymnasium squares either the action, in float32, or the simulation's controls, in float64.
    """

    def __init__(
        self, count: int, actions: int, weight: float, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self._squares = np.empty((count, actions), dtype)
        self._cost = np.empty(count, dtype)
        self._weight = weight

    def __call__(self, action: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Cost [n] of `action` [n, A]; the array is reused by the next call."""
        np.square(action, out=self._squares)
        np.add.reduce(self._squares, axis=1, out=self._cost)
        self._cost *= self._weight
        return self._cost


class Within:
    """Which rows of a live view [n] lie strictly between two bounds; NaN does not."""

    def __init__(self, values: Floats, low: float, high: float) -> None:
        self._values, self._low, self._high = values, low, high

    def __call__(self) -> npt.NDArray[np.bool_]:
        """[n], a new array."""
        within: npt.NDArray[np.bool_] = self._values > self._low
        within &= self._values < self._high
        return within


def body_number(sims: Sims, name: str) -> int:
    """The number of the model's body `name`."""
    number: int = sims.model.body(name).id
    return number


def length(vectors: Floats) -> Floats:
    """Euclidean lengths [n] of `vectors` [n, D], by the dot product that `linalg.norm` takes."""
    dots: Floats = np.matmul(vectors[:, np.newaxis, :], vectors[:, :, np.newaxis])[:, 0, 0]
    return np.sqrt(dots)


def scalar_squares(values: Floats) -> Floats:
    """Each of `values` [n] to the power 2 as NumPy scalars have it, by the C library's `pow`.

    `values * values`, which arrays compute, differs in the last bit in one case of a thousand.
    """
    return np.array([math.pow(value, 2.0) for value in values.tolist()])
