"""Adam on one flat float32 vector in numpy, in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.models.mlp_kernel import aligned

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

NORM_FLOOR = 1e-6
"""Added to the norm before the gradient is scaled down, as torch does."""


class FusedAdam:
    """Clips the gradient's global norm and takes Adam's step (Kingma and Ba, 2015, section 2).

    The bias corrections are folded into two scalars, so that a step is a few passes over [P].
    """

    def __init__(self, record: Adam, parameters: Float32, gradient: Float32) -> None:
        self.parameters, self.gradient = parameters, gradient
        self.rate = record.rate(0.0)
        self._record = record
        self._mean, self._square = aligned(parameters.size), aligned(parameters.size)
        self._scratch = aligned(parameters.size)
        self._steps = 0

    def norm(self) -> float:
        """The Euclidean norm of the gradient."""
        return math.sqrt(float(np.dot(self.gradient, self.gradient)))

    def step(self, norm: float) -> None:
        """Scale the gradient down to the allowed norm if need be, and take one step."""
        record, gradient, scratch = self._record, self.gradient, self._scratch
        mean, square = self._mean, self._square
        first, second = record.betas
        if record.max_grad_norm is not None and norm > record.max_grad_norm:
            np.multiply(gradient, np.float32(record.max_grad_norm / (norm + NORM_FLOOR)), gradient)
        self._steps += 1
        np.subtract(gradient, mean, out=scratch)
        np.multiply(scratch, np.float32(1.0 - first), out=scratch)
        np.add(mean, scratch, out=mean)
        np.multiply(gradient, gradient, out=scratch)
        np.subtract(scratch, square, out=scratch)
        np.multiply(scratch, np.float32(1.0 - second), out=scratch)
        np.add(square, scratch, out=square)
        correction = math.sqrt(1.0 - second**self._steps)
        np.sqrt(square, out=scratch)
        np.add(scratch, np.float32(record.eps * correction), out=scratch)
        np.divide(mean, scratch, out=scratch)
        size = self.rate * correction / (1.0 - first**self._steps)
        np.multiply(scratch, np.float32(size), out=scratch)
        np.subtract(self.parameters, scratch, out=self.parameters)

    def state(self) -> dict[str, Array]:
        """Moments [P] float32 and steps [1] int64, by copy."""
        return {
            "adam/mean": self._mean.copy(),
            "adam/square": self._square.copy(),
            "adam/steps": np.array([self._steps], dtype=np.int64),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        np.copyto(self._mean, state["adam/mean"])
        np.copyto(self._square, state["adam/square"])
        self._steps = int(state["adam/steps"][0])
