"""Statistics of a data set's features, as LeRobot's `stats.json` has them.

Axes: N samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStats:
    """Count, range and moments of samples, all float64 of the samples' shape."""

    count: int
    least: Floats
    most: Floats
    mean: Floats
    squares: Floats
    """Sum of squared distances from the mean."""

    @classmethod
    def of(cls, samples: npt.NDArray[Any]) -> Self:
        """Of samples [N, *shape], N >= 1."""
        values = samples.astype(np.float64)
        mean = values.mean(axis=0)
        return cls(
            count=len(values),
            least=values.min(axis=0),
            most=values.max(axis=0),
            mean=mean,
            squares=np.square(values - mean).sum(axis=0),
        )

    @classmethod
    def of_image(cls, image: npt.NDArray[np.uint8]) -> Self:
        """Of the pixels of one image [H, W, 3], per channel [3, 1, 1], scaled to [0, 1]."""
        pixels = image.reshape(-1, image.shape[-1]) / 255.0
        return cls.of(pixels.reshape(len(pixels), -1, 1, 1))

    def merged(self, other: Self) -> Self:
        """Of both, by the update of Chan, Golub and LeVeque (1983), equation 2.1b."""
        count = self.count + other.count
        distance = other.mean - self.mean
        share = other.count / count
        return type(self)(
            count=count,
            least=np.minimum(self.least, other.least),
            most=np.maximum(self.most, other.most),
            mean=self.mean + distance * share,
            squares=self.squares + other.squares + distance**2 * self.count * share,
        )

    def counted_as(self, count: int) -> Self:
        """The same moments with another count: of images their number, not that of pixels."""
        scale = count / self.count
        return type(self)(
            count=count,
            least=self.least,
            most=self.most,
            mean=self.mean,
            squares=self.squares * scale,
        )

    def to_json(self) -> dict[str, Any]:
        """Lists by name, `std` being that of the population."""
        values = {
            "min": self.least,
            "max": self.most,
            "mean": self.mean,
            "std": np.sqrt(self.squares / self.count),
        }
        lists = {name: np.atleast_1d(value).tolist() for name, value in values.items()}
        return {**lists, "count": [self.count]}
