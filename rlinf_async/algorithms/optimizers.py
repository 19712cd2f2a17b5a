"""Optimizers as records; the learners hold their state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlinf_async.algorithms.schedules import Schedule
from rlinf_async.errors import BadInput


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

    def rate(self, progress: float) -> float:
        """The learning rate at `progress` in [0, 1] of the run."""
        rate = self.learning_rate
        return float(rate(progress)) if callable(rate) else float(rate)
