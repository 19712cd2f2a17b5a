"""Optimizers as records; the learners hold their state."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.schedules import Schedule
from rlinf_async.errors import BadInput

AVERAGE = "average/parameters"
"""Name of the averaged parameters [P] in an optimizer's state."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters whose name matches a pattern, and what they do otherwise than the rest.

    `ParameterGroup(match="*critic*", learning_rate_scale=3.0)` is a learning rate of the value
    net's own. A parameter takes the first group that its name matches.
    """

    match: str
    """Shell pattern over parameter names, such as `*critic*` or `*_weight`."""
    learning_rate_scale: float = 1.0
    """Times the optimizer's learning rate; 0 freezes the parameters."""
    weight_decay: float | None = None
    """In place of the optimizer's."""

    def __post_init__(self) -> None:
        for name in ("learning_rate_scale", "weight_decay"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < math.inf:
                raise BadInput("ParameterGroup", name, expected="a finite number >= 0", got=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, 2015) after clipping the gradient's global norm."""

    learning_rate: float | Schedule
    """A number, or a schedule of the run's progress."""
    max_grad_norm: float | None = 0.5
    """Gradients with a larger Euclidean norm are scaled down to it; None never scales."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5
    """Added to the root of the second moment; 1e-5 is what PPO implementations use."""
    weight_decay: float = 0.0
    """Parameters shrink by this times the learning rate in each step (Loshchilov and Hutter,
    2019, decoupled from the gradient). Biases and other vectors are left alone unless a group
    names them."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters with a learning rate or a weight decay of their own."""
    average_decay: float | None = None
    """Keep an exponential moving average of the parameters (Polyak and Juditsky, 1992), this much
    of which is left after a step. It is saved: `load_policy(folder, averaged=True)`."""

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if not callable(rate) and not (math.isfinite(rate) and rate >= 0):
            raise BadInput("Adam", "learning_rate", expected="a finite number >= 0", got=rate)
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise BadInput("Adam", "max_grad_norm", expected="> 0 or None", got=self.max_grad_norm)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput("Adam", "betas", expected="two numbers in [0, 1)", got=self.betas)
        if not self.eps > 0:
            raise BadInput("Adam", "eps", expected="> 0", got=self.eps)

        if not 0 <= self.weight_decay < math.inf:
            got = self.weight_decay
            raise BadInput("Adam", "weight_decay", expected="a finite number >= 0", got=got)
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            got = self.average_decay
            raise BadInput("Adam", "average_decay", expected="in (0, 1) or None", got=got)

    @property
    def is_plain(self) -> bool:
        """Whether all parameters are treated alike, and no average is kept."""
        return not (self.weight_decay or self.groups or self.average_decay)

    def rate(self, progress: float) -> float:
        """The learning rate at `progress` in [0, 1] of the run."""
        rate = self.learning_rate
        return float(rate(progress)) if callable(rate) else float(rate)


def per_parameter(
    record: Adam, shapes: Shapes
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Learning-rate scale and weight decay of each of the P numbers, both [P] float32.

    `shapes` are the parameters by name, in the order of the flat vector. BadInput if a group
    matches none of them.
    """
    scales, decays, used = [], [], set()
    for name, shape in shapes.items():
        scale, decay = 1.0, record.weight_decay if len(shape) > 1 else 0.0
        for number, group in enumerate(record.groups):
            if fnmatch.fnmatchcase(name, group.match):
                used.add(number)
                scale = group.learning_rate_scale
                decay = decay if group.weight_decay is None else group.weight_decay
                break
        size = math.prod(shape)
        scales.append(np.full(size, scale, dtype=np.float32))
        decays.append(np.full(size, decay, dtype=np.float32))
    for number, group in enumerate(record.groups):
        if number not in used:
            raise BadInput(
                "Adam",
                f"no parameter is left for the group {group.match!r}",
                expected=f"a pattern that matches one of {', '.join(shapes)}",
            )
    return np.concatenate(scales), np.concatenate(decays)
