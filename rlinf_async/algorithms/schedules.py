"""Values that change over a run, as records that can travel to a worker.

A schedule is called with the progress of the run in [0, 1]: iteration n of N has progress n / N, so
the first update uses the initial value and none uses the final one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rlinf_async.errors import BadInput

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """Half a cosine wave from `initial` to `final` (Loshchilov and Hutter, 2017, eq. 5)."""

    initial: float
    final: float

    def __call__(self, progress: float) -> float:
        share = 0.5 * (1.0 - math.cos(math.pi * min(max(progress, 0.0), 1.0)))
        return self.initial + (self.final - self.initial) * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Geometric decay from `initial` at progress 0 to `final` at progress 1."""

    initial: float
    final: float

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.final > 0):
            got = f"{self.initial} and {self.final}"
            raise BadInput("exponential", "initial and final", expected="> 0", got=got)

    def __call__(self, progress: float) -> float:
        share = min(max(progress, 0.0), 1.0)
        return self.initial * math.exp(share * math.log(self.final / self.initial))


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Another schedule, that for the first `share` of the run is scaled from 0 up to itself.

    `then` goes through its own whole course in what is left of the run.
    """

    share: float
    then: Schedule

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadInput("warmup", "share", expected="in (0, 1)", got=self.share)

    def __call__(self, progress: float) -> float:
        if progress < self.share:
            return self.then(0.0) * progress / self.share
        return self.then((progress - self.share) / (1.0 - self.share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Values that hold from a progress on: ((0.0, 3e-4), (0.5, 1e-4))."""

    values: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.values]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            expected = "starts that rise from 0"
            raise BadInput("steps", "values", expected=expected, got=starts)

    def __call__(self, progress: float) -> float:
        reached = [value for start, value in self.values if start <= progress]
        return reached[-1] if reached else self.values[0][1]


def constant(value: float) -> Constant:
    """A schedule that stays at `value`."""
    return Constant(value=value)


def linear(initial: float, final: float) -> Linear:
    """A schedule that goes from `initial` to `final` in a straight line."""
    return Linear(initial=initial, final=final)


def cosine(initial: float, final: float) -> Cosine:
    """A schedule that goes from `initial` to `final` along half a cosine wave."""
    return Cosine(initial=initial, final=final)


def exponential(initial: float, final: float) -> Exponential:
    """A schedule that goes from `initial` to `final` by equal factors."""
    return Exponential(initial=initial, final=final)


def warmup(share: float, then: Schedule) -> Warmup:
    """A schedule that rises from 0 in the first `share` of the run, and then is `then`."""
    return Warmup(share=share, then=then)


def steps(*values: tuple[float, float]) -> Steps:
    """A schedule of (progress, value) pairs, each of which holds until the next one."""
    return Steps(values=tuple((start, value) for start, value in values))
