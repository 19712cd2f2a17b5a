"""The lowest of an ensemble's values, with a backward pass through the lowest critics alone.

Axes: E critics, N samples, D inputs, H units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf_async.algorithms.off_policy.networks import heads


class Lowest(torch.autograd.Function):
    """min_j Q_j(x) [N] of plain ReLU critics, with the gradient by x only.

    Of every sample one critic counts, so that the backward pass takes each sample through that one:
    1/E of the products that a minimum over E whole backward passes needs. Where critics tie, the
    first of them counts.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, parameters: dict[str, Tensor], layers: int) -> Tensor:
        """`parameters` as `networks.critic_shapes` names them, without normalisation."""
        x = x_ND.expand(len(parameters["output.bias"]), *x_ND.shape)
        ctx.hidden = []
        for index in range(layers):
            weight, bias = parameters[f"hidden.{index}.weight"], parameters[f"hidden.{index}.bias"]
            x = torch.relu_(torch.baddbmm(bias, x, weight))
            ctx.hidden.append(x)
        q_EN = heads(x, parameters)
        lowest_N, ctx.which = q_EN.min(0)
        ctx.parameters = parameters
        return lowest_N

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        """From [N] to [N, D]."""
        parameters, (slope_N,) = ctx.parameters, slopes
        first = parameters["hidden.0.weight"]
        out = slope_N.new_zeros(len(slope_N), first.shape[1])
        for critic in range(len(first)):
            rows = torch.nonzero(ctx.which == critic).squeeze(1)
            slope = slope_N[rows, None] * parameters["output.weight"][critic].T
            for index in range(len(ctx.hidden) - 1, -1, -1):
                active = ctx.hidden[index][critic].index_select(0, rows)
                # ReLU's own backward: a mask of booleans takes several times longer.
                slope = torch.ops.aten.threshold_backward(slope, active, 0.0)
                slope = slope @ parameters[f"hidden.{index}.weight"][critic].T
            out[rows] = slope
        return out, None, None


def lowest(x_ND: Tensor, parameters: dict[str, Tensor], layers: int) -> Tensor:
    """min_j Q_j(x) [N], differentiable by x."""
    value: Tensor = Lowest.apply(x_ND, parameters, layers)  # type: ignore[no-untyped-call]
    return value
