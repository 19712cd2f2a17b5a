"""Advantages of whole episodes, from one score each: pure numpy functions.

Axes: S episodes, in any order; T steps, B slots. Groups are the episodes of one initial state. Sums
are exact (`math.fsum`), so that the order in which episodes or groups arrive changes no bit.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.advantages import Bools, Float32, Float64, Floats
from rlinf_async.algorithms.returns import rewards_to_go
from rlinf_async.errors import BadInput
from rlinf_async.scheduling import work_list

Int64 = npt.NDArray[np.int64]
GroupBaseline = Literal["grpo", "dr_grpo", "rloo"]

STD_FLOOR = 1e-6
"""Added to the deviation of a group's scores."""
BATCH_STD_FLOOR = 1e-8
"""Added to the deviation of a batch's advantages."""


def group_advantages(
    score_S: Floats, group_S: Int64, *, baseline: GroupBaseline = "grpo"
) -> Float32:
    """One advantage [S] float32 of each episode, compared with its group.

        grpo      (s - mean) / (std + 1e-6), std unbiased     Shao et al., 2024 (DeepSeekMath)
        dr_grpo   s - mean                                    Liu et al., 2025 (Dr.GRPO)
        rloo      G / (G - 1) (s - mean)                      Ahmadian et al., 2024

    Where all scores of a group are equal the advantage is exactly 0. A score that is not finite
    makes its group NaN, so that the step is skipped and counted.

    Raises:
        BadInput: `rloo` for a group of one, which has nobody to be compared with.
    """
    if baseline not in ("grpo", "dr_grpo", "rloo"):
        raise BadInput("group_advantages", "baseline", expected="grpo, dr_grpo or rloo")
    if score_S.shape != group_S.shape or score_S.ndim != 1:
        raise ValueError(f"expected two arrays [S], got {score_S.shape} and {group_S.shape}")
    advantage_S = np.zeros(len(score_S))
    for group in np.unique(group_S):
        members = np.flatnonzero(group_S == group)
        advantage_S[members] = _one_group(score_S[members].astype(np.float64), baseline)
    return advantage_S.astype(np.float32)


def tied_groups(score_S: Floats, group_S: Int64) -> set[int]:
    """The groups whose scores are all equal: nothing can be learned from them."""
    return {int(g) for g in np.unique(group_S) if work_list.tied(score_S[group_S == g].tolist())}


def untied_in_order(
    score_S: Floats, group_S: Int64, *, wanted: int, budget: int
) -> tuple[list[int], list[int]]:
    """Dynamic sampling (Yu et al., 2025, DAPO, section 3.2), decided by work-list number.

    Args:
        group_S: each episode's group; groups are numbered in the order of the work list, and all
            groups up to the largest number here are complete.
        wanted: groups of a batch.
        budget: how many groups beyond `wanted` may be tried as replacements.

    Returns the first `wanted` untied groups among the first `wanted + budget`, and the groups of
    the work list that must be tried next (none once there are enough, or the budget is spent).
    """
    scores = {int(g): score_S[group_S == g].tolist() for g in np.unique(group_S)}
    first = min(scores, default=0)
    return work_list.untied_in_order(scores, wanted=wanted, budget=budget, first=first)


def reinforce_pp_advantages(
    reward_TB: Floats,
    valid_TB: Bools,
    boundary_TB: Bools,
    logp_old_TB: Floats,
    logp_reference_TB: Floats,
    *,
    gamma: float,
    kl_weight: float,
) -> Float32:
    """REINFORCE++ (Hu et al., 2025): returns with a KL penalty, normalised over the batch, [T, B].

    r'_t = r_t - kl_weight (logp_old_t - logp_reference_t); R_t = r'_t + gamma R_{t+1} up to the
    boundary; A = (R - mean) / (std + 1e-8) over the valid entries.
    """
    penalty_TB = logp_old_TB.astype(np.float64) - logp_reference_TB
    shaped_TB = reward_TB - kl_weight * penalty_TB if kl_weight else reward_TB
    return masked_normalized(rewards_to_go(shaped_TB, valid_TB, boundary_TB, gamma=gamma), valid_TB)


def reinforce_pp_baseline_advantages(score_S: Floats, group_S: Int64) -> Float32:
    """REINFORCE++ with the group's mean as baseline: (s - mean of the group), normalised, [S].

    The advantages of the batch's episodes are then brought to mean 0 and deviation 1. The distance
    to a reference belongs into the loss here (k2), not into the reward.
    """
    centred_S = group_advantages(score_S, group_S, baseline="dr_grpo")
    return masked_normalized(centred_S, np.ones(len(centred_S), dtype=np.bool_))


def masked_normalized(advantages: Floats, valid: Bools) -> Float32:
    """`advantages` with mean 0 and (population) deviation 1 over the valid entries; 0 elsewhere.

    Both moments are exact sums in float64, two passes. No entry, one entry and entries that are
    all equal give 0, never NaN.
    """
    result = np.zeros(advantages.shape, dtype=np.float32)
    kept = advantages[valid].astype(np.float64)
    if kept.size == 0 or kept.min() == kept.max():
        return result
    if not np.isfinite(kept).all():
        result[valid] = np.nan
        return result
    centred = kept - math.fsum(kept) / kept.size
    deviation = math.sqrt(math.fsum(centred * centred) / kept.size)
    result[valid] = centred / (deviation + BATCH_STD_FLOOR)
    return result


def overlong_penalty(length_S: Int64, *, limit: int, cushion: int) -> Float32:
    """What an episode of this length loses, [S] float32 (Yu et al., 2025, DAPO, eq. 13).

    0 up to `limit - cushion`, then (limit - cushion - length) / cushion, and -1 beyond `limit`.
    """
    if not 0 < cushion <= limit:
        raise BadInput("overlong_penalty", "cushion", expected=f"1 to {limit}", got=cushion)
    penalty_S = (limit - cushion - length_S.astype(np.float64)) / cushion
    return np.clip(penalty_S, -1.0, 0.0).astype(np.float32)


def _one_group(score_G: Float64, baseline: GroupBaseline) -> Float64:
    count = len(score_G)
    if baseline == "rloo" and count == 1:
        raise BadInput(
            "group_advantages",
            "a group of one episode has no other to be compared with",
            expected="at least 2 episodes in each group",
            got=1,
        )
    if not np.isfinite(score_G).all():
        return np.full(count, np.nan)
    if score_G.min() == score_G.max():
        return np.zeros(count)
    centred_G = score_G - math.fsum(score_G) / count
    if baseline == "dr_grpo":
        return centred_G
    if baseline == "rloo":
        return centred_G * (count / (count - 1))
    deviation = math.sqrt(math.fsum(centred_G * centred_G) / (count - 1))
    return centred_G / (deviation + STD_FLOOR)
