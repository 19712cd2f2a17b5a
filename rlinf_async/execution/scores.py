"""What an evaluation found: every episode, and the mean and spread of all. Pure arithmetic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlinf_async.execution.records import Episode

Z_975 = 1.959963984540054
"""Quantile 0.975 of the normal distribution."""
_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Quantile 0.975 of Student's t for 1 to 10 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and spread of some numbers."""

    mean: float
    std: float
    """Of the sample (divided by n - 1); 0 for a single number."""
    min: float
    max: float
    interval_95: tuple[float, float] | None
    """Student's interval for the mean; None for a single number, which has no spread to go by."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one number."""
        mean, count = statistics.fmean(values), len(values)
        std = statistics.stdev(values) if count > 1 else 0.0
        half = t_quantile_975(count - 1) * std / math.sqrt(count) if count > 1 else 0.0
        interval = (mean - half, mean + half) if count > 1 else None
        return cls(mean=mean, std=std, min=min(values), max=max(values), interval_95=interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often something happened."""

    rate: float
    count: int
    interval_95: tuple[float, float]
    """Wilson's score interval, which holds near 0 and 1 and for few trials too."""

    @classmethod
    def of(cls, happened: Sequence[bool]) -> Rate:
        """Of at least one trial. Wilson, J. Am. Stat. Assoc. 22 (1927), p. 209."""
        n, count = len(happened), sum(happened)
        share, z2 = count / n, Z_975**2
        centre = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = Z_975 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
        low, high = max(0.0, centre - half), min(1.0, centre + half)
        return cls(rate=share, count=count, interval_95=(low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The episodes of an evaluation's work list, in its order."""

    env: str
    version: int
    """Of the weights that acted."""
    seed: int
    """Of the run that the episodes' own seeds come from."""
    sampled: bool
    """Whether actions were sampled; else they were the distribution's mode."""
    episodes: tuple[Episode, ...]

    @property
    def returns(self) -> Spread:
        """Of the raw sums of rewards."""
        return Spread.of([episode.episode_return for episode in self.episodes])

    @property
    def lengths(self) -> Spread:
        """Of the simulator steps."""
        return Spread.of([float(episode.length) for episode in self.episodes])

    @property
    def success_once(self) -> Rate | None:
        """Episodes that succeeded at any step; None where the environment reports no success."""
        return _rate([episode.success_once for episode in self.episodes])

    @property
    def success_at_end(self) -> Rate | None:
        """Episodes that succeeded at their last step."""
        return _rate([episode.success_at_end for episode in self.episodes])

    def metrics(self) -> dict[str, float]:
        """The figures to follow over a run, under `eval/`."""
        returns = self.returns
        found = {
            "eval/version": float(self.version),
            "eval/return_mean": returns.mean,
            "eval/return_std": returns.std,
            "eval/length_mean": self.lengths.mean,
        }
        for name in ("success_once", "success_at_end"):
            rate: Rate | None = getattr(self, name)
            if rate is not None:
                found[f"eval/{name}"] = rate.rate
        return found

    def to_json(self) -> dict[str, Any]:
        """One record with everything, as orjson can write it; the same for any number of slots."""
        return {
            "env": self.env,
            "version": self.version,
            "seed": self.seed,
            "actions": "sampled" if self.sampled else "deterministic",
            "episode_count": len(self.episodes),
            "return": asdict(self.returns),
            "length": asdict(self.lengths),
            "success_once": None if self.success_once is None else asdict(self.success_once),
            "success_at_end": None if self.success_at_end is None else asdict(self.success_at_end),
            "episodes": [_episode(episode) for episode in self.episodes],
        }


def t_quantile_975(freedom: int) -> float:
    """Quantile 0.975 of Student's t; to four digits, by Abramowitz and Stegun 26.7.5 above 10."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = Z_975
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def _rate(happened: Sequence[bool | None]) -> Rate | None:
    told = [each for each in happened if each is not None]
    return Rate.of(told) if told else None


def _episode(episode: Episode) -> dict[str, Any]:
    return {
        "number": episode.number,
        "seed": episode.seed,
        "task": episode.task,
        "return": episode.episode_return,
        "length": episode.length,
        "success_once": episode.success_once,
        "success_at_end": episode.success_at_end,
        "first_version": episode.first_version,
        "last_version": episode.last_version,
    }
