"""Values that change over a run, as records that can travel to a worker.

A schedule is called with the progress of the run in [0, 1]: iteration n of N has progress n / N, so
the first update uses the initial value and none uses the final one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Schedule: TypeAlias = Callable[[float], float]
"""Any named function of the progress; `linear` and `constant` are the built-in ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same value throughout."""

    value: float

    def __call__(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A straight line from `initial` at progress 0 to `final` at progress 1."""

    initial: float
    final: float

    def __call__(self, progress: float) -> float:
        share = min(max(progress, 0.0), 1.0)
        return self.initial + (self.final - self.initial) * share


def constant(value: float) -> Constant:
    """A schedule that stays at `value`."""
    return Constant(value=value)


def linear(initial: float, final: float) -> Linear:
    """A schedule that goes from `initial` to `final` in a straight line."""
    return Linear(initial=initial, final=final)
