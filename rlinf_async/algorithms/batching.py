"""From a batch of segments to the flat arrays that a learner runs its epochs over.

Axes: T time, B slots in cell order, N = T * B entries in time-major order (entry t * B + b), M any
number of rows. Both learners use this, so both see the same numbers in the same order.

What the entries of a batch are compared with depends on the version that acted:

    plain        the ratio's denominator is the stored log-prob of the version that acted
    decoupled    it is version n's own log-prob (computed once), and each sample has a weight
    V-trace      likewise version n's own, and so are the values; the advantages hold the correction

Entries that version n itself acted take the stored numbers, so that at lag 0 all three are one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.advantages import (
    Advantages,
    Gae,
    NStep,
    VTrace,
    chunk_rewards,
    gae_advantages,
    vtrace_advantages,
)
from rlinf_async.algorithms.normalizers import (
    CLIP,
    Statistics,
    affine,
    is_normalized_dtype,
    normalize,
)
from rlinf_async.algorithms.returns import n_step_advantages, rewards_to_go
from rlinf_async.errors import EngineError

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

JOINED = "x"
"""The one name of `Prepared.observations` where vector observations are concatenated."""


class Evaluator(Protocol):
    """The policy of the version that is being trained, on rows of normalised observations."""

    def logp(
        self, observations: Mapping[str, Array], action: Array, executed: Array | None = None
    ) -> Float32:
        """Log-probs [M] float32 of `action` [M, *shape], summed over its components.

        `executed` [M] int64: of chunks, so many actions count.
        """
        ...

    def value(self, observations: Mapping[str, Array]) -> Float32:
        """Values [M] float32."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """N entries, in time-major order."""

    observations: dict[str, Array]
    """Normalised [N, *shape] by name; or, joined, [N, D] float32 under the name `x`."""
    action: Array
    """[N, *shape], as stored."""
    logp_old: Float32
    """[N], of the version that acted."""
    logp_base: Float32
    """[N], the ratio's denominator (the same array as `logp_old` where nothing was recomputed)."""
    weight: Float32 | None
    """[N], weight of each sample in the policy's loss; None stands for 1 everywhere."""
    alpha: Float32 | None
    """[N], (n - v) / (n + 1 - v) of entries that version v acted (`interpolate`); else None."""
    value_old: Float32
    """[N], what the value clip is centred on."""
    advantage: Float32
    """[N], not normalised."""
    returns: Float32
    """[N], targets of the value."""
    version: Int64
    """[N], the version that acted."""
    executed: Int64 | None
    """[N], of chunks the actions that were simulated; None without chunks."""

    def __len__(self) -> int:
        return len(self.logp_old)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How a learner's batches become entries; a function of the configuration alone."""

    advantages: Advantages
    normalized: bool
    """Whether observations are normalised at all."""
    joined: bool
    """Concatenate the observations, all float vectors, in the order of the statistics."""
    decoupled: tuple[float, Literal["truncate", "drop"]] | None = None
    """Decoupled correction: the cap of sample weights, and what becomes of a weight above it."""
    interpolated: bool = False
    """Whether the clip's centre is interpolated between versions, which needs `alpha`."""

    def __call__(
        self,
        batch: Mapping[str, Array],
        *,
        statistics: Statistics,
        scales: Mapping[int, float],
        version: int,
        evaluator: Evaluator,
    ) -> Prepared:
        """Normalise, scale, recompute what the correction needs, and estimate advantages.

        Args:
            batch: the fields of the segments; `version` is [T] or [T, B], all others have slots.
            statistics: of `version`, used for every observation here.
            scales: reward scale of each version that acted; read only if rewards are scaled.
            version: n, the version that is trained.
            evaluator: called only where older versions acted and the correction needs it.
        """
        version_TB = _version_of_entries(batch)
        stale_TB = version_TB != version
        own_values = isinstance(self.advantages, VTrace)
        recomputed = (own_values or self.decoupled is not None) and bool(stale_TB.any())
        rows = slice(None) if recomputed and own_values else slice(0, -1)
        seen = self._observations(batch, statistics, rows)
        logp_old, weight = _rows(batch["logp"]), None
        base, value, final_value = logp_old, batch["value"], batch["final_value"]
        if recomputed:
            base = _fresh_logp(batch, stale_TB, seen, evaluator)
        if recomputed and own_values:
            value = _fresh_values(value, stale_TB, evaluator.value(seen))
            final_value = self._fresh_final_values(batch, stale_TB, statistics, evaluator)
        if recomputed and self.decoupled is not None:
            weight = sample_weights(base - logp_old, *self.decoupled)
        rewards = _rewards(batch["reward"], version_TB, scales, self.advantages.scale_rewards)
        executed = batch.get("executed")
        gamma: float | Float64 = self.advantages.gamma
        if executed is not None:
            rewards, gamma = chunk_rewards(
                rewards, executed, gamma=self.advantages.gamma, discount=self.advantages.discount
            )
        steps = (rewards, batch["terminated"], batch["truncated"], value, final_value)
        advantage, returns = estimate(self.advantages, *steps, base - logp_old, gamma)
        return Prepared(
            observations={name: each[: stale_TB.size] for name, each in seen.items()},
            action=_rows(batch["action"]),
            logp_old=logp_old,
            logp_base=base,
            weight=weight,
            alpha=_alphas(version - version_TB) if self.interpolated else None,
            value_old=_rows(value[:-1]),
            advantage=_rows(advantage),
            returns=_rows(returns),
            version=_rows(version_TB),
            executed=None if executed is None else _rows(executed),
        )

    def _observations(
        self, batch: Mapping[str, Array], statistics: Statistics, steps: slice
    ) -> dict[str, Array]:
        """Observations before these steps as the policy sees them, in rows."""
        raw = {name: _rows(batch[f"obs/{name}"][steps]) for name in statistics.observations}
        return self.normalize(raw, statistics)

    def normalize(self, raw: Mapping[str, Array], statistics: Statistics) -> dict[str, Array]:
        """Rows [M, *shape] of raw observations as the policy sees them."""
        return normalize_rows(raw, statistics, normalized=self.normalized, joined=self.joined)

    def _fresh_final_values(
        self,
        batch: Mapping[str, Array],
        stale_TB: Array,
        statistics: Statistics,
        evaluator: Evaluator,
    ) -> Float32:
        """Values [T, B] of true last observations, computed for the truncated ones only."""
        final_value: Float32 = batch["final_value"].copy()
        wanted = batch["truncated"] & ~batch["terminated"] & stale_TB
        if wanted.any():
            raw = {name: batch[f"final/{name}"][wanted] for name in statistics.observations}
            final_value[wanted] = evaluator.value(self.normalize(raw, statistics))
        return final_value


def normalize_rows(
    raw: Mapping[str, Array], statistics: Statistics, *, normalized: bool, joined: bool
) -> dict[str, Array]:
    """Rows [M, *shape] of raw observations as a policy sees them.

    Floats become clip((raw - mean) / deviation, +-10) where `normalized`; other dtypes stay as they
    are. `joined` writes all of them, which must be float vectors, side by side into one [M, D].
    """
    affines = {n: affine(m) for n, m in statistics.observations.items()} if normalized else {}
    if not joined:
        return {
            name: normalize(rows, *affines[name])
            if normalized and is_normalized_dtype(rows.dtype)
            else rows
            for name, rows in raw.items()
        }
    widths = [rows.shape[1] for rows in raw.values()]
    count = len(next(iter(raw.values())))
    x: Float32 = np.empty((count, sum(widths)), dtype=np.float32)
    start = 0
    for (name, rows), width in zip(raw.items(), widths, strict=True):
        part = x[:, start : start + width]
        if normalized:
            normalize(rows, *affines[name], out=part)
        else:
            part[...] = rows
        start += width
    return {JOINED: x}


def sample_weights(
    log_ratio: Float32, weight_cap: float, cap: Literal["truncate", "drop"]
) -> Float32:
    """exp(log_ratio) [N], and above `weight_cap` the cap or (`drop`) 0; exactly 1 for ratio 1.

    `log_ratio` is version n's log-prob minus that of the version that acted.
    """
    # The exponential of anything above 80 would overflow float32; it is above any sensible cap.
    weight: Float32 = np.exp(np.minimum(log_ratio, np.float32(80.0)))
    limit = np.float32(weight_cap)
    if cap == "truncate":
        return np.minimum(weight, limit)
    weight[weight > limit] = 0.0
    return weight


def permutation(count: int, *, seed: int, version: int, epoch: int) -> Int64:
    """The order of the entries in one epoch, a function of its arguments alone."""
    bits = np.random.PCG64(np.random.SeedSequence((seed, version, epoch)))
    return np.random.Generator(bits).permutation(count)


def minibatches(count: int, minibatch: int) -> list[slice]:
    """How an epoch's permuted entries are cut: count // minibatch parts, at least one.

    Where `minibatch` does not divide `count`, the remainder is spread evenly (sizes differ by at
    most 1) instead of making a small last part, whose gradient would be noise.
    """
    return even_parts(count, max(1, count // minibatch))


def even_parts(count: int, parts: int) -> list[slice]:
    """`count` entries in `parts` ranges of nearly one size, but never an empty one."""
    parts = min(parts, count)
    edges = [count * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def estimate(
    advantages: Advantages,
    reward_TB: Float64,
    terminated_TB: Array,
    truncated_TB: Array,
    value_TB: Array,
    final_value_TB: Array,
    log_ratio: Array,
    gamma: float | Float64,
) -> tuple[Float32, Float32]:
    """Advantages and value targets [T, B] of the named estimator; only V-trace reads the ratio."""
    steps = (reward_TB, terminated_TB, truncated_TB, value_TB, final_value_TB)
    if isinstance(advantages, Gae):
        return gae_advantages(*steps, gamma=gamma, lam=advantages.lam)
    if isinstance(advantages, VTrace):
        return vtrace_advantages(
            *steps,
            log_ratio.reshape(reward_TB.shape),
            gamma=gamma,
            lam=advantages.lam,
            rho_bar=advantages.rho_bar,
            c_bar=advantages.c_bar,
        )
    valid_TB = np.ones(reward_TB.shape, dtype=np.bool_)
    if isinstance(advantages, NStep):
        return n_step_advantages(
            reward_TB, valid_TB, *steps[1:], gamma=gamma, steps=advantages.steps
        )
    returns = rewards_to_go(reward_TB, valid_TB, terminated_TB | truncated_TB, gamma=gamma)
    return returns, returns


def _alphas(lag_TB: Int64) -> Float32:
    """lag / (lag + 1), [N]: 0 for entries of the version that is trained."""
    lag = _rows(lag_TB).astype(np.float32)
    return lag / (lag + np.float32(1.0))


def _rewards(
    reward_TB: Float64, version_TB: Int64, scales: Mapping[int, float], scale_rewards: bool
) -> Float64:
    """Rewards divided by the scale of the version that acted, within +-10; or just as they are."""
    if not scale_rewards:
        return reward_TB
    acted = [int(version) for version in np.unique(version_TB)]
    missing = [version for version in acted if version not in scales]
    if missing:
        raise EngineError(f"no reward scale of version {missing[0]}; known: {sorted(scales)}")
    scale: Float64 | float = scales[acted[0]]
    if len(acted) > 1:
        table = np.array([scales[version] for version in acted])
        scale = table[np.searchsorted(acted, version_TB)]
        scale = scale.reshape(*scale.shape, *(1,) * (reward_TB.ndim - scale.ndim))
    return np.clip(reward_TB / scale, -CLIP, CLIP)


def _version_of_entries(batch: Mapping[str, Array]) -> Int64:
    """[T, B] from what may be one version a step."""
    version = batch["version"]
    if version.ndim == 1:
        version = version[:, None]
    return np.broadcast_to(version, batch["logp"].shape)


def _fresh_logp(
    batch: Mapping[str, Array],
    stale_TB: Array,
    seen: Mapping[str, Array],
    evaluator: Evaluator,
) -> Float32:
    """Log-probs [N]: version n's own, and stored ones where version n acted."""
    entries = {name: each[: stale_TB.size] for name, each in seen.items()}
    executed = _rows(batch["executed"]) if "executed" in batch else None
    fresh = evaluator.logp(entries, _rows(batch["action"]), executed)
    return np.where(stale_TB.reshape(-1), fresh, _rows(batch["logp"]))


def _fresh_values(stored: Float32, stale_TB: Array, computed: Float32) -> Float32:
    """Values [T+1, B]: version n's own, and stored ones where version n acted.

    The value after the last step was computed by the version of the last step.
    """
    stale = np.concatenate([stale_TB, stale_TB[-1:]])
    return np.where(stale, computed.reshape(stored.shape), stored)


def _rows(field: Array) -> Array:
    """[T, B, ...] as [T * B, ...]."""
    return field.reshape(-1, *field.shape[2:])
