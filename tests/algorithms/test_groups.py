"""Advantages of whole episodes against slow references and hand-computed cases."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.algorithms.groups import (
    group_advantages,
    masked_normalized,
    overlong_penalty,
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
    tied_groups,
    untied_in_order,
)
from rlinf_async.errors import BadInput


@st.composite
def grouped_scores(draw):
    """Scores [S] and groups [S] of 2 to 5 episodes each, in any order."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    group = np.repeat(rng.permutation(20)[: len(sizes)], sizes)
    scores = rng.normal(0, 5, len(group))
    if draw(st.booleans()):
        scores = (scores > 0).astype(np.float64)
    order = rng.permutation(len(group))
    return scores[order], group[order].astype(np.int64)


def slow_group_advantages(scores, groups, baseline):
    result = []
    for score, group in zip(scores, groups, strict=True):
        mates = [float(s) for s, g in zip(scores, groups, strict=True) if g == group]
        if max(mates) == min(mates):
            result.append(0.0)
        elif baseline == "grpo":
            spread = statistics.stdev(mates) + 1e-6
            result.append((score - statistics.fmean(mates)) / spread)
        elif baseline == "dr_grpo":
            result.append(score - statistics.fmean(mates))
        else:  # the mean of the others, as RLOO is defined
            others = (sum(mates) - score) / (len(mates) - 1)
            result.append(score - others)
    return result


@given(grouped_scores(), st.sampled_from(["grpo", "dr_grpo", "rloo"]))
def test_group_advantages_equal_their_definition(scores_and_groups, baseline):
    found = group_advantages(*scores_and_groups, baseline=baseline)
    assert found.dtype == np.float32
    slow = slow_group_advantages(*scores_and_groups, baseline)
    np.testing.assert_allclose(found, slow, rtol=1e-5, atol=1e-6)


@given(grouped_scores(), st.sampled_from(["grpo", "dr_grpo", "rloo"]), st.integers(0, 999))
def test_the_order_of_arrival_changes_no_bit(scores_and_groups, baseline, seed):
    scores, groups = scores_and_groups
    order = np.random.default_rng(seed).permutation(len(scores))
    here = group_advantages(scores, groups, baseline=baseline)
    there = group_advantages(scores[order], groups[order], baseline=baseline)
    np.testing.assert_array_equal(here[order], there)
    normalized_here = reinforce_pp_baseline_advantages(scores, groups)
    normalized_there = reinforce_pp_baseline_advantages(scores[order], groups[order])
    np.testing.assert_array_equal(normalized_here[order], normalized_there)


@pytest.mark.parametrize("baseline", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("score", [0.0, 1.0, 123.4, 0.1, -1e30])
def test_groups_that_tie_have_advantage_zero(baseline, score):
    scores = np.full(7, score, dtype=np.float32)
    assert not group_advantages(scores, np.zeros(7, np.int64), baseline=baseline).any()
    assert tied_groups(scores, np.zeros(7, np.int64)) == {0}


def test_group_advantages_by_hand():
    """Scores 0 0 1 3: mean 1, deviations -1 -1 0 2, unbiased std sqrt(6/3) = 1.41421.

    GRPO -0.7071 -0.7071 0 1.4142;  Dr.GRPO -1 -1 0 2;  RLOO 4/3 of that.
    """
    scores, group = np.array([0.0, 0.0, 1.0, 3.0]), np.zeros(4, np.int64)
    root = math.sqrt(0.5)
    grpo = group_advantages(scores, group)
    np.testing.assert_allclose(grpo, [-root, -root, 0.0, 2 * root], rtol=1e-5)
    assert group_advantages(scores, group, baseline="dr_grpo").tolist() == [-1, -1, 0, 2]
    rloo = group_advantages(scores, group, baseline="rloo")
    np.testing.assert_allclose(rloo, [-4 / 3, -4 / 3, 0, 8 / 3], rtol=1e-6)


def test_a_group_of_one_has_no_others():
    one = (np.array([3.0]), np.array([0]))
    assert group_advantages(*one).tolist() == [0.0]
    with pytest.raises(BadInput, match="no other"):
        group_advantages(*one, baseline="rloo")
    with pytest.raises(BadInput, match="baseline"):
        group_advantages(*one, baseline="mean")


def test_a_score_that_is_not_finite_spoils_its_own_group_only():
    scores, groups = np.array([np.nan, 1.0, 0.0, 2.0]), np.array([0, 0, 1, 1])
    found = group_advantages(scores, groups, baseline="dr_grpo")
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == [-1.0, 1.0]


def test_reinforce_pp_by_hand():
    """One episode of two steps, gamma 0.5, KL weight 0.1; log-prob minus reference is 1 and -2.

    r' = 0 - .1 = -.1 and 2 + .2 = 2.2;  R = -.1 + 1.1 = 1.0 and 2.2: mean 1.6, deviation 0.6.
    A = -1 and 1. A third, masked step counts for nothing.
    """
    column = np.array([[0.0], [2.0], [50.0]])
    found = reinforce_pp_advantages(
        column,
        np.array([[True], [True], [False]]),
        np.array([[False], [True], [False]]),
        np.array([[0.5], [-1.0], [9.0]]),
        np.array([[-0.5], [1.0], [0.0]]),
        gamma=0.5,
        kl_weight=0.1,
    )
    np.testing.assert_allclose(found.ravel(), [-1.0, 1.0, 0.0], atol=1e-6)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 9999), st.sampled_from([0.0, 0.3]))
def test_reinforce_pp_equals_its_definition(length, slots, seed, kl_weight):
    rng = np.random.default_rng(seed)
    reward, logp, reference = rng.standard_normal((3, length, slots))
    valid, boundary = rng.random((2, length, slots)) < 0.6
    returns = []
    for t in range(length):
        for slot in range(slots):
            total, weight = 0.0, 1.0
            for s in range(t, length):
                if not valid[s, slot]:
                    continue
                drift = logp[s, slot] - reference[s, slot]
                total += weight * (reward[s, slot] - kl_weight * drift)
                weight *= 0.9
                if boundary[s, slot]:
                    break
            returns.append(total if valid[t, slot] else None)
    kept = [each for each in returns if each is not None]
    mean = statistics.fmean(kept) if kept else 0.0
    spread = statistics.pstdev(kept) if len(kept) > 1 else 1.0
    slow = [0.0 if each is None else (each - mean) / (spread + 1e-8) for each in returns]
    found = reinforce_pp_advantages(
        reward, valid, boundary, logp, reference, gamma=0.9, kl_weight=kl_weight
    )
    np.testing.assert_allclose(found.ravel(), slow, rtol=1e-3, atol=1e-3)


def test_reinforce_pp_with_the_groups_mean_by_hand():
    """Groups 0 4 and 5 5: centred -2 2 0 0, mean 0, deviation sqrt 2: -1.414 1.414 0 0."""
    scores, groups = np.array([0.0, 4.0, 5.0, 5.0]), np.array([0, 0, 1, 1])
    found = reinforce_pp_baseline_advantages(scores, groups)
    np.testing.assert_allclose(found, [-math.sqrt(2), math.sqrt(2), 0.0, 0.0], rtol=1e-6)


@given(st.integers(0, 30), st.integers(0, 9999), st.sampled_from([0.0, 0.5, 1.0]))
def test_masked_normalisation_has_mean_zero_and_deviation_one(count, seed, rate):
    rng = np.random.default_rng(seed)
    values, valid = rng.normal(40, 3, count), rng.random(count) < rate
    found = masked_normalized(values, valid)
    assert not found[~valid].any()
    if valid.sum() < 2:
        assert not found.any()
    else:
        assert statistics.fmean(found[valid].tolist()) == pytest.approx(0.0, abs=1e-5)
        assert statistics.pstdev(found[valid].tolist()) == pytest.approx(1.0, abs=1e-5)


def test_normalisation_of_equal_or_broken_entries():
    mask = np.array([True, True, False])
    assert not masked_normalized(np.array([0.1, 0.1, 7.0]), mask).any()
    broken = masked_normalized(np.array([0.1, np.inf, 7.0]), mask)
    assert np.isnan(broken[:2]).all()
    assert broken[2] == 0.0


def test_overlong_episodes_lose_up_to_one():
    """Limit 10, cushion 4: free up to 6, then a quarter a step, all beyond 10."""
    lengths = np.array([1, 6, 7, 8, 10, 11, 50])
    found = overlong_penalty(lengths, limit=10, cushion=4)
    assert found.tolist() == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0, -1.0]
    with pytest.raises(BadInput, match="cushion"):
        overlong_penalty(lengths, limit=10, cushion=11)


def test_tied_groups_are_replaced_in_the_order_of_the_work_list():
    """Groups 0 and 2 tie, so of two wanted ones only 1 and 3 are left, and 4 is not needed."""
    scores = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    groups = np.repeat(np.arange(5), 2)
    assert untied_in_order(scores, groups, wanted=2, budget=3) == ([1, 3], [])
    kept, wanted_next = untied_in_order(scores[:6], groups[:6], wanted=2, budget=3)
    assert (kept, wanted_next) == ([1], [3])
    assert untied_in_order(scores[:6], groups[:6], wanted=2, budget=1) == ([1], [])
    arrival = np.array([7, 2, 9, 0, 4, 6, 3, 5, 8, 1])
    assert untied_in_order(scores[arrival], groups[arrival], wanted=2, budget=3) == ([1, 3], [])
