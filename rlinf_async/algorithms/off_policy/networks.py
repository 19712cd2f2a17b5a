"""Networks of off-policy learners: all parameters of one kind are views of one flat tensor.

Most of a small update's time is dispatch and the rest are matrix products, so an ensemble of E
critics goes through one batched product a layer, and one Adam step serves all its parameters.

Axes: E critics, N samples, D inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import layer_norm as normalise_layer

from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.models.squashed import Shapes, views_of

Array = npt.NDArray[Any]

BATCH_NORM_FLOOR = 1e-5
NORM_FLOOR = 1e-6
"""Added to the norm before the gradient is scaled down, as torch does."""


class Flat:
    """Named parameters as views of one flat tensor, with their gradients in another.

    `live` are leaves with gradients; `still` are the same numbers without, for passes whose
    gradient by the parameters nobody needs.
    """

    def __init__(self, shapes: Shapes, values: Tensor, *, gradient: bool = True) -> None:
        self.values = values
        self.still: dict[str, Tensor] = views_of(shapes, values)
        self.live: dict[str, Tensor] = {}
        self.gradient = torch.zeros_like(values)
        if gradient:
            parts = views_of(shapes, self.gradient)
            for name, view in self.still.items():
                self.live[name] = view.detach().requires_grad_()
                self.live[name].grad = parts[name]


class Trained:
    """A flat vector with its Adam; `step` goes from a loss to new parameters.

    Adam's step (Kingma and Ba, 2015) is the kernel under torch's `Adam(fused=True)`: a single pass
    over parameters, gradient and moments. That class itself would load torch's compiler, which
    takes many times longer than a short run.
    """

    def __init__(self, flat: Flat, record: Adam) -> None:
        self.flat, self._record = flat, record
        self._rate = record.rate(0.0)
        self._mean, self._square = torch.zeros_like(flat.values), torch.zeros_like(flat.values)
        self._steps = torch.tensor(0.0)

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on."""
        self._rate = rate

    def step(self, loss: Tensor) -> bool:
        """Backward and one step; False, and no step, where the gradient is not finite."""
        self.flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.linalg.vector_norm(self.flat.gradient))
        if not math.isfinite(norm):
            return False
        record, limit = self._record, self._record.max_grad_norm
        if limit is not None and norm > limit:
            self.flat.gradient.mul_(limit / (norm + NORM_FLOOR))
        self._steps += 1.0
        torch._fused_adam_(
            [self.flat.values],
            [self.flat.gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            lr=self._rate,
            beta1=record.betas[0],
            beta2=record.betas[1],
            weight_decay=0.0,
            eps=record.eps,
            amsgrad=False,
            maximize=False,
        )
        return True

    def state(self) -> dict[str, Array]:
        """Moments [P] float32 and steps [1] int64, by copy."""
        return {
            "adam/mean": self._mean.numpy().copy(),
            "adam/square": self._square.numpy().copy(),
            "adam/steps": np.array([int(self._steps)]),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        np.copyto(self._mean.numpy(), state["adam/mean"])
        np.copyto(self._square.numpy(), state["adam/square"])
        self._steps.fill_(float(state["adam/steps"][0]))


def mlp(parameters: dict[str, Tensor], x: Tensor, layers: int) -> Tensor:
    """Outputs [N, O] of a policy's or value's net with `layers` hidden layers of ReLU."""
    for index in range(layers):
        weight, bias = parameters[f"hidden.{index}.weight"], parameters[f"hidden.{index}.bias"]
        x = torch.relu_(torch.addmm(bias, x, weight))
    return torch.addmm(parameters["output.bias"], x, parameters["output.weight"])


def critic_shapes(
    inputs: int, hidden: tuple[int, ...], critics: int, *, norm: bool, norm_inputs: bool = False
) -> Shapes:
    """Names and shapes of an ensemble's parameters, each with a leading axis E."""
    shapes: Shapes = {}
    if norm_inputs:
        shapes["inputs.scale"] = shapes["inputs.shift"] = (critics, 1, inputs)
    for index, units in enumerate(hidden):
        shapes[f"hidden.{index}.weight"] = (critics, inputs, units)
        shapes[f"hidden.{index}.bias"] = (critics, 1, units)
        if norm:
            shapes[f"hidden.{index}.scale"] = (critics, 1, units)
            shapes[f"hidden.{index}.shift"] = (critics, 1, units)
        inputs = units
    shapes["output.weight"] = (critics, inputs, 1)
    shapes["output.bias"] = (critics, 1, 1)
    return shapes


def initial_values(shapes: Shapes, rng: np.random.Generator) -> Tensor:
    """Weights and biases uniform within 1 / sqrt(inputs), scales 1, shifts 0; flat [P]."""
    parts, limit = [], 0.0
    for name, shape in shapes.items():
        if name.endswith("weight"):
            limit = 1.0 / math.sqrt(shape[-2])
        if name.endswith(("scale", "shift")):
            part = np.full(shape, float(name.endswith("scale")))
        else:
            part = rng.uniform(-limit, limit, shape)
        parts.append(part.ravel())
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def critics(parameters: dict[str, Tensor], x_ND: Tensor, layers: int, *, norm: bool) -> Tensor:
    """Values [E, N] of inputs [N, D]; with layer normalisation before each ReLU if `norm`."""
    count = len(parameters["output.bias"])
    x = x_ND.expand(count, *x_ND.shape)
    for index in range(layers):
        name = f"hidden.{index}"
        x = torch.baddbmm(parameters[f"{name}.bias"], x, parameters[f"{name}.weight"])
        if norm:
            x = normalise_layer(x, x.shape[-1:])
            x = torch.addcmul(parameters[f"{name}.shift"], x, parameters[f"{name}.scale"])
        x = torch.relu_(x)
    return heads(x, parameters)


def heads(x_ENH: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    """Values [E, N] from the last hidden layer.

    Products of a matrix and a vector, one for each critic: the batched product takes many times
    longer for a single column.
    """
    weights, biases = parameters["output.weight"].squeeze(-1), parameters["output.bias"]
    parts = zip(biases.reshape(-1, 1).unbind(), x_ENH.unbind(), weights.unbind(), strict=True)
    return torch.stack([torch.addmv(bias, x, weight) for bias, x, weight in parts])


class BatchNormCritics:
    """An ensemble with batch normalisation of its inputs and behind every activation (CrossQ).

    `running` are mean and variance of each normalised layer, one after the other, flat: buffers,
    which no gradient touches and a checkpoint keeps.
    """

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], count: int, *, momentum: float
    ) -> None:
        self._momentum, self._layers = momentum, len(hidden)
        shapes: Shapes = {}
        for index, units in enumerate((inputs, *hidden)):
            shapes[f"{index}.mean"] = shapes[f"{index}.var"] = (count, 1, units)
        self.running = torch.zeros(sum(math.prod(shape) for shape in shapes.values()))
        self._views: dict[str, Tensor] = views_of(shapes, self.running)
        for name, view in self._views.items():
            view.fill_(float(name.endswith("var")))

    def __call__(self, parameters: dict[str, Tensor], x_ND: Tensor, *, training: bool) -> Tensor:
        """Values [E, N]; `training` uses the batch's own statistics and moves the running ones."""
        count = len(parameters["output.bias"])
        x = self._normalised(0, "inputs", parameters, x_ND.expand(count, *x_ND.shape), training)
        for index in range(self._layers):
            name = f"hidden.{index}"
            x = torch.baddbmm(parameters[f"{name}.bias"], x, parameters[f"{name}.weight"])
            x = self._normalised(index + 1, name, parameters, torch.relu_(x), training)
        return heads(x, parameters)

    def _normalised(
        self, layer: int, name: str, parameters: dict[str, Tensor], x: Tensor, training: bool
    ) -> Tensor:
        mean, var = self._views[f"{layer}.mean"], self._views[f"{layer}.var"]
        if training:
            batch_var, batch_mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
            mean.lerp_(batch_mean.detach(), self._momentum)
            var.lerp_(batch_var.detach(), self._momentum)
            mean, var = batch_mean, batch_var
        scale = parameters[f"{name}.scale"] * torch.rsqrt(var + BATCH_NORM_FLOOR)
        return torch.addcmul(parameters[f"{name}.shift"], x - mean, scale)
