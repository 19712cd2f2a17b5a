"""Adam on one flat float32 vector in torch, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlinf_async.algorithms.optimizers import AVERAGE, Adam, per_parameter

Array = npt.NDArray[Any]


class FlatAdam:
    """Clips the gradient's norm and takes Adam's step on one flat vector, in place.

    Where the record treats parameters differently, rates and decays are vectors too.
    """

    def __init__(
        self,
        record: Adam,
        parameters: Tensor,
        gradient: Tensor,
        named: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`named` are the parameters by name, in their order; read only if the record asks."""
        self.parameters, self.gradient = parameters, gradient
        self.rate = record.rate(0.0)
        self._record = record
        self._mean, self._square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._scratch = torch.empty_like(parameters)
        self._steps = 0
        self._scale: Tensor | None = None
        self._decay: Tensor | None = None
        self._average: Tensor | None = None
        if record.weight_decay or record.groups:
            self._scale, self._decay = _per_parameter(record, named or {})
        if record.average_decay is not None:
            self._average = parameters.clone()

    def restart_average(self) -> None:
        """The average begins anew at the present parameters."""
        if self._average is not None:
            self._average.copy_(self.parameters)

    def norm(self) -> float:
        """The Euclidean norm of the gradient."""
        return float(torch.linalg.vector_norm(self.gradient))

    def step(self, norm: float) -> None:
        """Scale the gradient down to the allowed norm if need be, and take one step."""
        record = self._record
        first, second = record.betas
        if record.max_grad_norm is not None and norm > record.max_grad_norm:
            self.gradient.mul_(record.max_grad_norm / (norm + 1e-6))
        self._steps += 1
        self._mean.lerp_(self.gradient, 1.0 - first)
        self._square.mul_(second).addcmul_(self.gradient, self.gradient, value=1.0 - second)
        torch.sqrt(self._square, out=self._scratch)
        self._scratch.div_((1.0 - second**self._steps) ** 0.5).add_(record.eps)
        size = self.rate / (1.0 - first**self._steps)
        if self._scale is None or self._decay is None:
            self.parameters.addcdiv_(self._mean, self._scratch, value=-size)
        else:
            self.parameters.mul_(1.0 - self.rate * self._scale * self._decay)
            self._scratch.reciprocal_().mul_(self._scale)
            self.parameters.addcmul_(self._mean, self._scratch, value=-size)
        if self._average is not None and record.average_decay is not None:
            self._average.lerp_(self.parameters, 1.0 - record.average_decay)

    def state(self) -> dict[str, Array]:
        """Moments and average [P] float32 and steps [1] int64, by copy."""
        state: dict[str, Array] = {
            "adam/mean": self._mean.numpy().copy(),
            "adam/square": self._square.numpy().copy(),
            "adam/steps": np.array([self._steps], dtype=np.int64),
        }
        if self._average is not None:
            state[AVERAGE] = self._average.numpy().copy()
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        np.copyto(self._mean.numpy(), state["adam/mean"])
        np.copyto(self._square.numpy(), state["adam/square"])
        self._steps = int(state["adam/steps"][0])
        if self._average is not None:
            np.copyto(self._average.numpy(), state[AVERAGE])


def _per_parameter(record: Adam, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and decay [P]; a parameter without gradient neither moves nor decays."""
    scale, decay = per_parameter(record, {n: tuple(p.shape) for n, p in named.items()})
    start = 0
    for parameter in named.values():
        stop = start + parameter.numel()
        if not parameter.requires_grad:
            scale[start:stop] = 0.0
        start = stop
    return torch.from_numpy(scale), torch.from_numpy(decay)
