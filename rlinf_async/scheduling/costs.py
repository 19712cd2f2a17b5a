"""How long a phase takes, fitted on line from measured spans; nothing is typed in by hand.

    seconds = f * d^-e * (a + b x + c max(0, x - x0)) * (1 + sum_j chi_j o_j),    x = ceil(n / d)

for n units of work on d devices, all coefficients >= 0. The shape (a, b, c, x0, e, chi) is fitted
over everything that was ever measured: a plan that is kept no longer varies n and d, and a shape
that forgot would drift. Only the speed f follows the run. What lies outside the measured range is
marked and has a wide interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SPEED_GAIN = 0.1
"""Weight of the newest residual in the moving average of log f."""
KNOT_POINTS = 5
"""Distinct x that a bend needs; with fewer it would follow the noise."""
EXPONENT_DEVICES = 3
"""Distinct device counts that an exponent needs."""
UNMEASURED_SPREAD = 0.25
"""Relative half width of an interval where one size was measured, once."""
UNMEASURED_CONTENTION = 0.5
"""What an overlap that was never tried may add, in the upper end of the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured span of a phase."""

    units: int
    """n, of work: slots of a call, entries of a batch."""
    devices: int
    """d, that it ran on."""
    seconds: float
    overlap: Mapping[str, float] = field(default_factory=dict)
    """Phase on the same machine -> share of the span in which it ran too, 0 to 1."""
    threads_per_core: float = 1.0
    """Runnable threads over cores; above 1 the span is so many times too long."""

    @property
    def x(self) -> int:
        """Units of the device with the most."""
        return math.ceil(self.units / self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds with an interval of about two standard deviations."""

    seconds: float
    low: float
    high: float
    extrapolated: bool = False
    """Outside the range that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """a + b x + c max(0, x - x0), and the device exponent e."""

    a: float
    b: float
    c: float = 0.0
    x0: float = 0.0
    e: float = 0.0
    spread: float = UNMEASURED_SPREAD
    """Standard deviation of the relative residuals."""

    def seconds(self, x: Any, devices: Any) -> Any:
        """Of x units on each of `devices` devices, undisturbed; both may be arrays."""
        bent = self.a + self.b * x + self.c * np.maximum(0.0, x - self.x0)
        return bent * np.asarray(devices, np.float64) ** -self.e


class PhaseCost:
    """The cost of one phase on one kind of device."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self._samples: list[Sample] = []
        self._shape: Shape | None = None
        self._contention: dict[str, float] = {}
        self.log_speed = 0.0
        """log f: how much slower the run is now than when its shape was measured."""

    def add(self, sample: Sample) -> None:
        """Learn the shape from a trial."""
        self._samples.append(sample)
        self._shape = None

    def follow(self, sample: Sample) -> float:
        """Follow the speed with a span of the plan in force; returns its log residual."""
        residual = math.log(sample.seconds / self._at(sample, speed=1.0))
        self.log_speed += SPEED_GAIN * (residual - self.log_speed)
        return residual

    @property
    def shape(self) -> Shape:
        """The fit over all samples; ValueError without any."""
        if self._shape is None:
            if not self._samples:
                raise ValueError(f"phase {self.phase!r} was never measured")
            self._fit()
        assert self._shape is not None
        return self._shape

    @property
    def contention(self) -> Mapping[str, float]:
        """chi of every phase that was seen beside this one."""
        if self._samples:
            _ = self.shape
        return self._contention

    def measured(self) -> dict[int, float]:
        """Devices -> median seconds of the spans measured on so many, undisturbed."""
        alone = [sample for sample in self._samples if not any(sample.overlap.values())]
        counts = sorted({sample.devices for sample in alone})
        return {
            count: float(np.median([s.seconds for s in alone if s.devices == count]))
            for count in counts
        }

    def seconds(self, units: int, devices: Any) -> Any:
        """The point prediction alone, undisturbed; `devices` may be an array of candidates."""
        x = np.ceil(units / np.asarray(devices))
        return math.exp(self.log_speed) * self.shape.seconds(x, devices)

    def predict(
        self, units: int, devices: int, overlap: Mapping[str, float] | None = None
    ) -> Prediction:
        """Seconds of `units` on `devices`, while the phases of `overlap` run too for a share."""
        shape, shares = self.shape, overlap or {}
        x = math.ceil(units / devices)
        measured = [sample.x for sample in self._samples]
        point = float(self.seconds(units, devices)) * self._slowdown(shares)
        low, high = point * (1 - 2 * shape.spread), point * (1 + 2 * shape.spread)
        outside = not min(measured) <= x <= max(measured)
        if outside:
            low, high = self._widened(x, devices, low, high)
        unknown = sum(share for name, share in shares.items() if name not in self._contention)
        return Prediction(
            seconds=point,
            low=max(0.0, low),
            high=high * (1.0 + UNMEASURED_CONTENTION * unknown),
            extrapolated=outside,
        )

    def _widened(self, x: int, devices: int, low: float, high: float) -> tuple[float, float]:
        """Beyond the largest x nothing promises a line, below the smallest nothing a constant."""
        measured = [sample.x for sample in self._samples]
        least, most = min(measured), max(measured)
        speed = math.exp(self.log_speed)
        if x > most:
            known = speed * float(self.shape.seconds(most, devices))
            return min(low, known), high * (x / most) ** 1.25
        known = speed * float(self.shape.seconds(least, devices))
        return min(low, known * x / least), max(high, known)

    def _slowdown(self, overlap: Mapping[str, float]) -> float:
        return 1.0 + sum(self._contention.get(name, 0.0) * o for name, o in overlap.items())

    def _at(self, sample: Sample, *, speed: float) -> float:
        base = float(self.shape.seconds(sample.x, sample.devices))
        return speed * base * self._slowdown(sample.overlap) * max(1.0, sample.threads_per_core)

    def _fit(self) -> None:
        alone = [sample for sample in self._samples if not any(sample.overlap.values())]
        self._shape = fit_shape(alone or self._samples)
        together = [sample for sample in self._samples if any(sample.overlap.values())]
        self._contention = self._fit_contention(together) if alone else {}

    def _fit_contention(self, together: Sequence[Sample]) -> dict[str, float]:
        names = sorted({name for sample in together for name in sample.overlap})
        if not names:
            return {}
        shares = np.array([[s.overlap.get(name, 0.0) for name in names] for s in together])
        excess = np.array(
            [
                s.seconds / (self.shape.seconds(s.x, s.devices) * max(1.0, s.threads_per_core))
                - 1.0
                for s in together
            ]
        )
        return dict(zip(names, nonnegative_least_squares(shares, excess).tolist(), strict=True))


def fit_shape(samples: Sequence[Sample]) -> Shape:
    """The shape with the smallest relative error; ties and few points get the simpler one."""
    x = np.array([sample.x for sample in samples], np.float64)
    devices = np.array([sample.devices for sample in samples], np.float64)
    seconds = np.array([s.seconds / max(1.0, s.threads_per_core) for s in samples])
    sizes = np.unique(x)
    if len(sizes) == 1:
        # One size says nothing about how time divides into a fixed part and a part per unit.
        middle = float(np.median(seconds))
        spread = _spread(seconds / middle - 1.0, free=1)
        return Shape(a=middle / 2, b=middle / 2 / float(sizes[0]), spread=spread)
    exponents = [0.0]
    if len(np.unique(devices)) >= EXPONENT_DEVICES:
        exponents += [0.05 * step for step in range(1, 11)]
    knots = [0.0, *sizes[1:-1]] if len(sizes) >= KNOT_POINTS else [0.0]
    fits = [
        _fit_with(x, devices, seconds, float(x0), e)
        for x0, e in itertools.product(knots, exponents)
    ]
    return min(fits, key=lambda fit: fit[0])[1]


def _fit_with(
    x: Floats, devices: Floats, seconds: Floats, x0: float, e: float
) -> tuple[float, Shape]:
    """Bayesian information criterion and shape, for a given bend (0: none) and exponent."""
    scaled = seconds * devices**e
    columns = [np.ones_like(x), x] + ([np.maximum(0.0, x - x0)] if x0 else [])
    matrix = np.stack(columns, axis=1) / scaled[:, None]
    found = nonnegative_least_squares(matrix, np.ones_like(x))
    residuals = matrix @ found - 1.0
    free = len(columns) + (1 if e else 0)
    count = len(x)
    # A floor of one per mille: perfect data must not make a useless bend infinitely likely.
    error = float(np.mean(residuals**2)) + 1e-6
    score = count * math.log(error) + free * math.log(count)
    a, b, *c = found.tolist()
    spread = _spread(residuals, free=free)
    return score, Shape(a=a, b=b, c=c[0] if c else 0.0, x0=x0, e=e, spread=spread)


def _spread(residuals: Floats, *, free: int) -> float:
    """Standard deviation over what is left of the degrees of freedom; the default without any."""
    left = len(residuals) - free
    if left < 1:
        return UNMEASURED_SPREAD / 2 if len(residuals) > 1 else UNMEASURED_SPREAD
    return max(0.005, math.sqrt(float(np.sum(residuals**2)) / left))


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """argmin |matrix w - target|, w >= 0, for few columns: every set of positive ones is tried."""
    columns = matrix.shape[1]
    best, least = np.zeros(columns), float(target @ target)
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            part, *_ = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)
            if (part < 0.0).any():
                continue
            rest = matrix[:, chosen] @ part - target
            error = float(rest @ rest)
            if error < least * (1.0 - 1e-12):
                best = np.zeros(columns)
                best[list(chosen)] = part
                least = error
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """constant + slope * size, both >= 0: a link's seconds by bytes, a phase's bytes by units."""

    constant: float = 0.0
    slope: float = 0.0

    def __call__(self, size: Any) -> Any:
        """The value at `size`, a number or an array."""
        return self.constant + self.slope * size

    @classmethod
    def fitted(cls, sizes: Sequence[float], values: Sequence[float]) -> Linear:
        """The line of least squares through measured points; all 0 without any."""
        if not sizes:
            return cls()
        x = np.asarray(sizes, np.float64)
        matrix = np.stack([np.ones_like(x), x], axis=1)
        constant, slope = nonnegative_least_squares(matrix, np.asarray(values, np.float64))
        return cls(constant=float(constant), slope=float(slope))


class Drift:
    """A two-sided CUSUM on log residuals (Page, 1954): has the load changed for good?

    Deviations below `slack` are noise; `limit` is how much of the rest must add up.
    """

    def __init__(self, *, slack: float = 0.05, limit: float = 0.5) -> None:
        self._slack, self._limit = slack, limit
        self._up = self._down = 0.0

    def add(self, log_residual: float) -> bool:
        """Take in one residual against the plan's prediction; true when the load has changed."""
        # One outlier, a page fault or a neighbour's burst, must not be enough by itself.
        bounded = max(-self._limit / 2, min(self._limit / 2, log_residual))
        self._up = max(0.0, self._up + bounded - self._slack)
        self._down = max(0.0, self._down - bounded - self._slack)
        return max(self._up, self._down) > self._limit

    def reset(self) -> None:
        """Begin anew, under a new plan."""
        self._up = self._down = 0.0
