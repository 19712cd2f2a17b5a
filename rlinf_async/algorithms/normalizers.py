"""Running moments of observations and of the discounted return, which belong to a weights version.

Axes: T time, B slots. Version n's statistics are frozen while batch n is trained; the batch's raw
observations are merged when version n + 1 goes live (Chan et al., 1979; float64, in cell order).
What enters, each observation exactly once:

    obs[1..T]   after every step, so also the reset observation that follows an episode's end
    final[t]    the true last observation of an episode that ended at step t
    obs[0]      only of a slot's first segment (`fresh`): later it is the previous segment's obs[T]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rlinf_async.execution.spaces import ArraySpec, Spaces

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

VARIANCE_FLOOR = 1e-8
"""Added to a variance before its root is taken."""
CLIP = 10.0
"""Normalised observations and scaled rewards are kept within +- this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and (population) variance of arrays of one shape, float64."""

    count: float
    mean: Float64
    var: Float64

    @classmethod
    def initial(cls, shape: tuple[int, ...] = ()) -> Self:
        """No entries: mean 0, variance 1, so that normalising with it changes nothing."""
        return cls(count=0.0, mean=np.zeros(shape), var=np.ones(shape))

    @classmethod
    def of(cls, entries: npt.NDArray[Any]) -> Self:
        """Moments over the first axis of [N, *shape], in two passes; N >= 1."""
        exact = entries.astype(np.float64)
        mean = exact.mean(axis=0)
        exact -= mean
        return cls(count=float(len(exact)), mean=mean, var=np.square(exact, out=exact).mean(axis=0))

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets of entries together (Chan's pairwise formula)."""
        if other.count == 0:
            return self
        if self.count == 0:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.var * self.count + other.var * other.count
        squares = squares + delta * delta * (self.count * other.count / count)
        return Moments(count=count, mean=np.asarray(mean), var=np.asarray(squares / count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """All running moments of one version; immutable."""

    observations: Mapping[str, Moments]
    returns: Moments
    """Moments of the discounted return R, whose deviation scales rewards."""

    @classmethod
    def initial(cls, spaces: Spaces) -> Self:
        """The statistics of version 0."""
        return cls(
            observations={s.name: Moments.initial(s.shape) for s in spaces.observation},
            returns=Moments.initial(),
        )

    @classmethod
    def from_row(cls, row: Mapping[str, npt.NDArray[Any]], spaces: Spaces) -> Self:
        """Read the statistics of a weights row, or of a checkpoint, by copy."""
        return cls(
            observations={
                s.name: Moments(
                    count=float(row[f"count/{s.name}"][0]),
                    mean=np.array(row[f"mean/{s.name}"], dtype=np.float64),
                    var=np.array(row[f"var/{s.name}"], dtype=np.float64),
                )
                for s in spaces.observation
            },
            returns=Moments(
                count=float(row["reward_count"][0]),
                mean=np.array(row["reward_mean"][0], dtype=np.float64),
                var=np.array(row["reward_var"][0], dtype=np.float64),
            ),
        )

    def fields(self) -> dict[str, Float64]:
        """The fields of a weights row, by name: `mean/<name>`, `reward_var` and so on."""
        fields: dict[str, Float64] = {}
        for name, moments in self.observations.items():
            fields[f"mean/{name}"] = moments.mean
            fields[f"var/{name}"] = moments.var
            fields[f"count/{name}"] = np.array([moments.count])
        fields["reward_mean"] = self.returns.mean.reshape(1)
        fields["reward_var"] = self.returns.var.reshape(1)
        fields["reward_count"] = np.array([self.returns.count])
        return fields

    def to_row(self, row: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the statistics into a weights row's arrays."""
        for name, values in self.fields().items():
            row[name][...] = values

    @property
    def reward_scale(self) -> float:
        """What rewards are divided by: the deviation of R (1 at version 0, but for the floor)."""
        return float(np.sqrt(self.returns.var + VARIANCE_FLOOR))

    def merged(
        self, batch: Mapping[str, npt.NDArray[Any]], *, cells: Sequence[int], fresh: bool
    ) -> Statistics:
        """The statistics after `batch`'s raw observations were merged, cell after cell.

        Args:
            batch: `obs/<name>` [T+1, B, *shape], `final/<name>` [T, B, *shape] and the bits [T, B].
            cells: slots of each cell, in order; they add up to B.
            fresh: whether obs[0] has not been counted by an earlier batch.
        """
        ended_TB = batch["terminated"] | batch["truncated"]
        observations = dict(self.observations)
        for name, moments in observations.items():
            obs, final = batch[f"obs/{name}"], batch[f"final/{name}"]
            if not is_normalized_dtype(obs.dtype):
                continue
            for at in cell_slices(cells):
                seen = obs[0 if fresh else 1 :, at]
                moments = moments.merged(Moments.of(seen.reshape(-1, *obs.shape[2:])))
                ended = ended_TB[:, at]
                if ended.any():
                    moments = moments.merged(Moments.of(final[:, at][ended]))
            observations[name] = moments
        return replace(self, observations=observations)

    def with_returns(
        self, returns_TB: Float64, *, cells: Sequence[int], valid_TB: Bools | None = None
    ) -> Statistics:
        """The statistics after the discounted returns R [T, B] were merged, cell after cell.

        `valid_TB` marks the simulator steps that were made; None: all of them.
        """
        moments = self.returns
        for at in cell_slices(cells):
            part = returns_TB[:, at]
            part = part.reshape(-1) if valid_TB is None else part[valid_TB[:, at]]
            moments = moments.merged(Moments.of(part))
        return replace(self, returns=moments)


class ReturnScaler:
    """The discounted return R of every slot, which lives on from batch to batch.

    Per slot and step: R = gamma R + r; R enters the statistics; R = 0 if the episode ended. A
    batch's cut does not reset it, so `running` [B] float64 belongs into a checkpoint.
    """

    def __init__(self, slots: int, *, gamma: float) -> None:
        self.gamma = gamma
        self.running: Float64 = np.zeros(slots)

    def returns(
        self, reward_TB: Float64, boundary_TB: Bools, valid_TB: Bools | None = None
    ) -> Float64:
        """R after each step's reward, [T, B] float64, before it is reset at a boundary.

        Steps that `valid_TB` does not mark were not made: R stays as it is.
        """
        if valid_TB is not None:
            return self._returns_of_valid(reward_TB, boundary_TB, valid_TB)
        returns_TB = np.empty(reward_TB.shape)
        going_on_TB = np.where(boundary_TB, 0.0, self.gamma)
        carry_B = self.gamma * self.running
        for t, return_B in enumerate(returns_TB):
            np.add(carry_B, reward_TB[t], out=return_B)
            np.multiply(return_B, going_on_TB[t], out=carry_B)
        self.running = np.where(boundary_TB[-1], 0.0, returns_TB[-1])
        return returns_TB

    def _returns_of_valid(self, reward_TB: Float64, boundary_TB: Bools, valid_TB: Bools) -> Float64:
        returns_TB = np.empty(reward_TB.shape)
        for t, made_B in enumerate(valid_TB):
            moved_B = self.gamma * self.running + reward_TB[t]
            returns_TB[t] = np.where(made_B, moved_B, self.running)
            self.running = np.where(boundary_TB[t], 0.0, returns_TB[t])
        return returns_TB


def sub_steps(
    reward_TBC: Float64, executed_TB: npt.NDArray[np.int64], boundary_TB: Bools
) -> tuple[Float64, Bools, Bools]:
    """Chunks as simulator steps in order, [T * C, B] each: rewards, ends, and which were made.

    A step that was not made earns nothing and ends nothing.
    """
    horizon, slots, chunk = reward_TBC.shape
    index = np.arange(chunk)
    valid_TBC = index < executed_TB[..., None]
    end_TBC = boundary_TB[..., None] & (index == executed_TB[..., None] - 1)
    earned_TBC = np.where(valid_TBC, reward_TBC, 0.0)

    def in_order(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.moveaxis(part, 2, 1).reshape(horizon * chunk, slots)

    return in_order(earned_TBC), in_order(end_TBC), in_order(valid_TBC)


def is_normalized_dtype(dtype: npt.DTypeLike) -> bool:
    """Whether observations of this dtype are normalised: floats are, images and choices are not."""
    return bool(np.issubdtype(np.dtype(dtype), np.floating))


def is_normalized(spec: ArraySpec) -> bool:
    """Whether observations of this declaration are normalised."""
    return is_normalized_dtype(spec.dtype)


def affine(moments: Moments) -> tuple[Float32, Float32]:
    """Mean and inverse deviation, float32, as both acting and learning use them."""
    inverse = 1.0 / np.sqrt(moments.var + VARIANCE_FLOOR)
    return moments.mean.astype(np.float32), inverse.astype(np.float32)


def normalize(
    raw: npt.NDArray[Any], mean: Float32, inverse: Float32, out: Float32 | None = None
) -> Float32:
    """clip((raw - mean) * inverse, -10, 10) in float32; every step of it, here and in acting."""
    result: Float32 = np.subtract(raw, mean, out=out)
    np.multiply(result, inverse, out=result)
    return np.clip(result, np.float32(-CLIP), np.float32(CLIP), out=result)


def cell_slices(cells: Sequence[int]) -> Iterator[slice]:
    """The slots of each cell as slices of a batch's slot axis, in order."""
    start = 0
    for slots in cells:
        yield slice(start, start + slots)
        start += slots
