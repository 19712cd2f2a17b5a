"""Advantage estimators as pure numpy functions, and the records that name them.

Axes: T time, B environment slots; a suffix names an array's axes. Arguments are float32 or float64,
results float32, and the recursions run in float64. What follows an entry is worth

    0                           where the episode terminated (both bits set: termination wins)
    V(true last observation)    where it was truncated
    V(next observation)         elsewhere, and at the segment's end V of the observation after it

and a boundary (either bit) cuts the recursion, so that nothing leaks into the next episode. Input
that is not finite gives output that is not, without a warning: learners count and skip such steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import BadInput

Floats = npt.NDArray[np.floating]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Discount = Literal["chunk", "step"]

_non_finite_passes = np.errstate(invalid="ignore", over="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """Generalised advantage estimation (Schulman et al., 2016)."""

    gamma: float
    lam: float
    scale_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, and clip them to +-10."""
    discount: Discount = "chunk"
    """What `gamma` is for where actions come in chunks: see `chunk_rewards`."""

    def __post_init__(self) -> None:
        _check_discounts("gae", self.gamma, self.lam)
        _check_discount_name("gae", self.discount)


@dataclass(frozen=True, slots=True, kw_only=True)
class VTrace:
    """V-trace (Espeholt et al., 2018): targets for samples that older versions collected."""

    gamma: float
    lam: float
    rho_bar: float = 1.0
    """Cap of the importance ratio in the temporal differences and in the advantage."""
    c_bar: float = 1.0
    """Cap of the ratio in the trace; at most `rho_bar`."""
    scale_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, and clip them to +-10."""
    discount: Discount = "chunk"
    """What `gamma` is for where actions come in chunks: see `chunk_rewards`."""

    def __post_init__(self) -> None:
        _check_discounts("vtrace", self.gamma, self.lam)
        _check_discount_name("vtrace", self.discount)
        if not self.rho_bar >= self.c_bar > 0:
            raise BadInput(
                "vtrace",
                "rho_bar and c_bar",
                expected="rho_bar >= c_bar > 0",
                got=f"rho_bar={self.rho_bar}, c_bar={self.c_bar}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NStep:
    """Returns of n steps with the value behind them (Sutton and Barto, 2018, eq. 7.1)."""

    gamma: float
    steps: int
    scale_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, and clip them to +-10."""
    discount: Discount = "chunk"
    """What `gamma` is for where actions come in chunks: see `chunk_rewards`."""

    def __post_init__(self) -> None:
        _check_discounts("n_step", self.gamma)
        _check_discount_name("n_step", self.discount)
        if self.steps < 1:
            raise BadInput("n_step", "steps", expected=">= 1", got=self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReturns:
    """Discounted rewards up to the episode's end or the segment's, without values (REINFORCE)."""

    gamma: float
    scale_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, and clip them to +-10."""
    discount: Discount = "chunk"
    """What `gamma` is for where actions come in chunks: see `chunk_rewards`."""

    def __post_init__(self) -> None:
        _check_discounts("raw_returns", self.gamma)
        _check_discount_name("raw_returns", self.discount)


Advantages = Gae | VTrace | NStep | RawReturns
"""What `pipe.train(advantages=...)` takes."""


def gae(gamma: float, lam: float, scale_rewards: bool = False, discount: Discount = "chunk") -> Gae:
    """Name generalised advantage estimation with discount `gamma` and trace decay `lam`."""
    return Gae(gamma=gamma, lam=lam, scale_rewards=scale_rewards, discount=discount)


def vtrace(
    gamma: float,
    lam: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    scale_rewards: bool = False,
    discount: Discount = "chunk",
) -> VTrace:
    """Name V-trace, whose log-probs and values the learner recomputes with the newest version."""
    return VTrace(
        gamma=gamma,
        lam=lam,
        rho_bar=rho_bar,
        c_bar=c_bar,
        scale_rewards=scale_rewards,
        discount=discount,
    )


def n_step(
    gamma: float, steps: int, scale_rewards: bool = False, discount: Discount = "chunk"
) -> NStep:
    """Name returns of `steps` steps, with the value of the observation behind them."""
    return NStep(gamma=gamma, steps=steps, scale_rewards=scale_rewards, discount=discount)


def raw_returns(
    gamma: float, scale_rewards: bool = False, discount: Discount = "chunk"
) -> RawReturns:
    """Name the plain discounted rewards, to which no value is added and none compared."""
    return RawReturns(gamma=gamma, scale_rewards=scale_rewards, discount=discount)


def chunk_rewards(
    reward_TBC: Floats, executed_TB: npt.NDArray[np.int64], *, gamma: float, discount: Discount
) -> tuple[Float64, float | Float64]:
    """One reward [T, B] for each chunk of which m = `executed_TB` sub-steps were simulated.

    Returns it with what the value behind the chunk is discounted by:

        chunk   r = sum_{i<m} r_i            gamma
        step    r = sum_{i<m} gamma^i r_i    gamma^m, [T, B]

    Sub-steps behind the m-th earn nothing, whatever stands there.
    """
    sub_steps = np.arange(reward_TBC.shape[-1])
    valid_TBC = sub_steps < executed_TB[..., None]
    earned_TBC = np.where(valid_TBC, reward_TBC, 0.0)
    if discount == "chunk":
        return earned_TBC.sum(axis=-1), gamma
    return earned_TBC @ gamma**sub_steps, gamma ** executed_TB.astype(np.float64)


def next_values(
    terminated_TB: Bools, truncated_TB: Bools, value_TB: Floats, final_value_TB: Floats
) -> Float64:
    """What follows each entry, [T, B] (see the module).

    Args:
        terminated_TB, truncated_TB: [T, B] bits of the step.
        value_TB: [T+1, B], the value before each step and after the last one.
        final_value_TB: [T, B], read only where an episode was truncated and not terminated.
    """
    _check_shapes(terminated_TB, truncated_TB, value_TB, final_value_TB)
    next_TB = value_TB[1:].astype(np.float64)
    boundary_TB = terminated_TB | truncated_TB
    if boundary_TB.any():
        np.copyto(next_TB, final_value_TB, where=boundary_TB)
        next_TB[terminated_TB] = 0.0
    return next_TB


@_non_finite_passes
def gae_advantages(
    reward_TB: Floats,
    terminated_TB: Bools,
    truncated_TB: Bools,
    value_TB: Floats,
    final_value_TB: Floats,
    *,
    gamma: float | Float64,
    lam: float,
) -> tuple[Float32, Float32]:
    """Advantages and returns of generalised advantage estimation, each [T, B] float32.

    delta_t = r_t + gamma next_t - V_t;  A_t = delta_t + gamma lam (1 - boundary_t) A_{t+1};
    return_t = A_t + V_t; nothing follows the last entry. Arguments as in `next_values`; `gamma` may
    be one of each entry, [T, B].
    """
    next_TB = next_values(terminated_TB, truncated_TB, value_TB, final_value_TB)
    value = value_TB[:-1].astype(np.float64)
    advantage_TB = reward_TB + gamma * next_TB - value
    decay_TB = np.where(terminated_TB | truncated_TB, 0.0, gamma * lam)
    _accumulate(advantage_TB, decay_TB)
    return advantage_TB.astype(np.float32), (advantage_TB + value).astype(np.float32)


@_non_finite_passes
def vtrace_advantages(
    reward_TB: Floats,
    terminated_TB: Bools,
    truncated_TB: Bools,
    value_TB: Floats,
    final_value_TB: Floats,
    log_ratio_TB: Floats,
    *,
    gamma: float | Float64,
    lam: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Float32, Float32]:
    """Advantages and value targets (vs) of V-trace, each [T, B] float32.

    rho = min(rho_bar, pi/mu); c = lam min(c_bar, pi/mu);
    delta_t = rho_t (r_t + gamma next_t - V_t);
    D_t = delta_t + gamma (1 - boundary_t) c_t D_{t+1}; vs_t = V_t + D_t;
    A_t = rho_t (r_t + gamma q_t - V_t) with q_t = next_t at a boundary or the last entry, else
    vs_{t+1}. Values are those of the version that is trained, and so is the numerator of the ratio.

    Args:
        log_ratio_TB: [T, B], log pi - log mu of the actions taken, summed over action components.
        The others are as in `next_values`.
    """
    next_TB = next_values(terminated_TB, truncated_TB, value_TB, final_value_TB)
    if log_ratio_TB.shape != next_TB.shape:
        raise ValueError(f"log_ratio_TB: expected shape {next_TB.shape}, got {log_ratio_TB.shape}")
    value = value_TB[:-1].astype(np.float64)
    # A ratio beyond exp(60) is capped in any case; without the limit its exponential may overflow.
    ratio_TB = np.exp(np.minimum(log_ratio_TB.astype(np.float64), 60.0))
    rho_TB = np.minimum(rho_bar, ratio_TB)
    boundary_TB = terminated_TB | truncated_TB
    decay_TB = np.where(boundary_TB, 0.0, gamma * lam * np.minimum(c_bar, ratio_TB))
    excess_TB = rho_TB * (reward_TB + gamma * next_TB - value)
    _accumulate(excess_TB, decay_TB)
    target_TB = value + excess_TB
    follows_TB = next_TB
    follows_TB[:-1] = np.where(boundary_TB[:-1], next_TB[:-1], target_TB[1:])
    advantage_TB = rho_TB * (reward_TB + gamma * follows_TB - value)
    return advantage_TB.astype(np.float32), target_TB.astype(np.float32)


@_non_finite_passes
def normalized(advantages: Floats) -> Float32:
    """`advantages` with mean 0 and (population) deviation 1, float32 of the same shape.

    Moments are float64, in two passes over the array in memory order. One entry, or entries that
    are all equal, give 0: compared exactly, since rounding makes their deviation a tiny number.
    """
    if advantages.size == 0 or advantages.min() == advantages.max():
        return np.zeros(advantages.shape, dtype=np.float32)
    centred = advantages.astype(np.float64)
    centred -= centred.mean()
    deviation = np.sqrt(np.mean(centred * centred))
    scaled: Float32 = (centred / (deviation + 1e-8)).astype(np.float32)
    return scaled


def _accumulate(term_TB: Float64, decay_TB: Float64) -> None:
    """term_t += decay_t term_{t+1}, from the last entry to the first, in place."""
    carry_B = np.empty_like(term_TB[0])
    for t in range(len(term_TB) - 2, -1, -1):
        np.multiply(decay_TB[t], term_TB[t + 1], out=carry_B)
        term_TB[t] += carry_B


def _check_discounts(who: str, gamma: float, lam: float = 0.0) -> None:
    for name, rate in (("gamma", gamma), ("lam", lam)):
        if not 0 <= rate <= 1:
            raise BadInput(who, name, expected="in [0, 1]", got=rate)


def _check_discount_name(who: str, discount: str) -> None:
    if discount not in ("chunk", "step"):
        raise BadInput(who, "discount", expected="'chunk' or 'step'", got=repr(discount))


def _check_shapes(
    terminated_TB: Bools, truncated_TB: Bools, value_TB: Floats, final_value_TB: Floats
) -> None:
    horizon, slots = terminated_TB.shape
    if horizon < 1:
        raise ValueError("a segment has at least one step, got none")
    expected = {
        "truncated_TB": (truncated_TB.shape, (horizon, slots)),
        "value_TB": (value_TB.shape, (horizon + 1, slots)),
        "final_value_TB": (final_value_TB.shape, (horizon, slots)),
    }
    for name, (got, wanted) in expected.items():
        if got != wanted:
            raise ValueError(f"{name}: expected shape {wanted}, got {got}")
