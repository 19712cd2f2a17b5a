"""Actions of policies with a tanh: from what a row stores to what lies within the bounds.

Such a policy samples u, and the row stores u, since log-probs are exact in it and not in a rounded
tanh(u). The environment is given the point of [low, high] that tanh(u) in [-1, 1] stands for.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rlinf_async.execution.spaces import ActionSpec

Float32 = npt.NDArray[np.float32]


class SquashedActions:
    """low + (tanh(u) + 1) / 2 * (high - low) for continuous components; others stay as they are."""

    def __init__(self, spec: ActionSpec) -> None:
        """`spec` is of one simulator step: actions may have an axis of chunks before its shape."""
        self._size = math.prod(spec.shape)
        self._parts: list[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []
        leaves = [part.spec for part in spec.parts] if spec.kind == "mixed" else [spec]
        start = 0
        for leaf in leaves:
            at = slice(start, start + math.prod(leaf.shape))
            if leaf.kind == "continuous":
                low, high = np.array(leaf.low), np.array(leaf.high)
                self._parts.append((at, low, (high - low) / 2.0))
            start = at.stop

    def __call__(self, actions: Float32) -> Float32:
        """Row actions [n, *A] (or [n, C, *A]) to a new array of the same shape."""
        squashed = np.array(actions, dtype=np.float32)
        components = squashed.reshape(-1, self._size)
        for at, low, half in self._parts:
            components[:, at] = low + (np.tanh(components[:, at], dtype=np.float64) + 1.0) * half
        return squashed
