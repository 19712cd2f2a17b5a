"""Whether what environments return can be learned from, over all slots of a cell at once.

Costs a few microseconds for each observation and step; `EnvRequest.checks` turns it off.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import EnvMismatch, Observation

# axes: n slots of the cell, m slots looked at
Slots = npt.NDArray[np.intp]
Limits = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class ValueChecks:
    """Finds NaN, infinities and integers out of their range, and names slot and key.

    `limits` are the smallest and largest values of integer observations, by name.
    """

    def __init__(self, name: str, first_slot: int, limits: dict[str, Limits]) -> None:
        self._name, self._first_slot, self._limits = name, first_slot, limits

    def observations(self, rows: Observation, slots: Slots) -> None:
        """Check rows [m, ...] of `slots`."""
        for key, values in rows.items():
            if values.dtype.kind == "f":
                if not all_finite(values):
                    self._refuse(key, values, ~np.isfinite(values), slots, "a finite number")
            elif (limits := self._limits.get(key)) is not None:
                low, high = limits
                outside = values < low
                outside |= values > high
                if outside.any():
                    self._refuse(key, values, outside, slots, _range(limits))

    def rewards(self, reward: npt.NDArray[np.float64]) -> None:
        """Check rewards [n] or [n, C] of the whole cell."""
        if not all_finite(reward):
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(reward))[0])
            raise self._mismatch(where[0], "reward", "a finite number", reward[where])

    def actions(self, actions: npt.NDArray[Any], slots: Slots) -> None:
        """Check row actions [n, ...]: a NaN is the policy's doing, not the environment's."""
        if actions.dtype.kind != "f" or all_finite(actions):
            return
        for slot in slots.tolist():
            if not np.isfinite(actions[slot]).all():
                raise self._mismatch(
                    slot, "action", "finite numbers from the policy", actions[slot]
                )

    def _refuse(
        self,
        key: str,
        values: npt.NDArray[Any],
        wrong: npt.NDArray[np.bool_],
        slots: Slots,
        expected: str,
    ) -> None:
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        at = f" at {list(where[1:])}" if len(where) > 1 else ""
        slot = int(slots[where[0]])
        raise self._mismatch(slot, f"observation {key!r}", expected, f"{values[where]}{at}")

    def _mismatch(self, slot: int, key: str, expected: str, got: object) -> EnvMismatch:
        return EnvMismatch(
            self._name, slot=self._first_slot + slot, key=key, expected=expected, got=got
        )


def all_finite(values: npt.NDArray[Any]) -> bool:
    """Whether an array of floats holds neither NaN nor infinities."""
    # One pass without a mask. The sum of the squares of finite numbers may overflow, which the
    # second look clears up, but no NaN and no infinity gets lost in it; `dot` would warn of both.
    quick = values.flags.c_contiguous and values.itemsize >= 4
    if quick and math.isfinite(np.vdot(values, values)):
        return True
    return bool(np.isfinite(values).all())


def _range(limits: Limits) -> str:
    low, high = limits
    return f"values from {low} to {high}" if low.ndim == 0 else "values within its space"
