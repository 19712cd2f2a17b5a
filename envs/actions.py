"""From stored actions to those that an environment takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.execution.spaces import ActionSpec


class ActionDecoder:
    """Turns the actions of a cell, as stored in a row, into the environment's own.

    Continuous actions are cast to the environment's dtype and then clipped, so that they lie within
    its bounds after rounding too. Choices are numbered from the space's `start`.
    """

    def __init__(self, spec: ActionSpec, slots: int) -> None:
        self._shape = (slots, *spec.shape)
        self._dtype = np.dtype(spec.dtype)
        self._start = spec.start if spec.kind == "discrete" else None
        if spec.kind == "continuous":
            self._low = np.array(spec.low, self._dtype).reshape(spec.shape)
            self._high = np.array(spec.high, self._dtype).reshape(spec.shape)

    def __call__(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Row actions [n, *A] to a new array [n, *A] in the environment's dtype."""
        if actions.shape != self._shape:
            raise ValueError(f"actions: expected shape {self._shape}, got {actions.shape}")
        if self._start is not None:
            return (actions + self._start).astype(self._dtype)
        decoded = actions.astype(self._dtype)
        np.maximum(decoded, self._low, out=decoded)
        np.minimum(decoded, self._high, out=decoded)
        return decoded
