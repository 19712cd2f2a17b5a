"""Advantage estimators against slow references, hand-computed cases and known ways to be wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms import gae, vtrace
from rlinf_async.algorithms.advantages import (
    gae_advantages,
    next_values,
    normalized,
    vtrace_advantages,
)
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe, rebuild


def slow_next_value(steps, t, b):
    _, terminated, truncated, value, final_value = steps
    if terminated[t, b]:
        return 0.0
    if truncated[t, b]:
        return float(final_value[t, b])
    return float(value[t + 1, b])


def slow_gae(steps, gamma, lam):
    """Discounted temporal differences summed up to the next boundary, from the definition."""
    reward, terminated, truncated, value, _ = steps
    horizon, slots = reward.shape
    advantage = np.zeros((horizon, slots))
    for b in range(slots):
        for t in range(horizon):
            for s in range(t, horizon):
                delta = reward[s, b] + gamma * slow_next_value(steps, s, b) - float(value[s, b])
                advantage[t, b] += (gamma * lam) ** (s - t) * delta
                if terminated[s, b] or truncated[s, b]:
                    break
    return advantage, advantage + value[:-1]


def slow_vtrace(steps, log_ratio, gamma, lam, rho_bar, c_bar):
    reward, terminated, truncated, value, _ = steps
    horizon, slots = reward.shape
    target = np.zeros((horizon, slots))
    advantage = np.zeros((horizon, slots))
    for b in range(slots):
        for t in range(horizon):
            trace = 1.0
            target[t, b] = float(value[t, b])
            for s in range(t, horizon):
                ratio = math.exp(log_ratio[s, b])
                delta = reward[s, b] + gamma * slow_next_value(steps, s, b) - float(value[s, b])
                target[t, b] += trace * min(rho_bar, ratio) * delta
                trace *= gamma * lam * min(c_bar, ratio)
                if terminated[s, b] or truncated[s, b]:
                    break
        for t in range(horizon):
            rho = min(rho_bar, math.exp(log_ratio[t, b]))
            last = t == horizon - 1 or terminated[t, b] or truncated[t, b]
            follows = slow_next_value(steps, t, b) if last else target[t + 1, b]
            advantage[t, b] = rho * (reward[t, b] + gamma * follows - float(value[t, b]))
    return advantage, target


@st.composite
def step_arrays(draw):
    horizon, slots = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([0.0, 0.2, 0.6, 1.0]))
    shape = (horizon, slots)
    return (
        rng.standard_normal(shape),
        rng.random(shape) < rate,
        rng.random(shape) < rate,
        rng.standard_normal((horizon + 1, slots)).astype(np.float32),
        rng.standard_normal(shape).astype(np.float32),
    )


rates = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@given(step_arrays(), rates, rates)
def test_gae_equals_the_sum_of_its_definition(steps, gamma, lam):
    advantage, returns = gae_advantages(*steps, gamma=gamma, lam=lam)
    slow_advantage, slow_returns = slow_gae(steps, gamma, lam)
    assert advantage.dtype == returns.dtype == np.float32
    np.testing.assert_allclose(advantage, slow_advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns, slow_returns, rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(step_arrays(), rates, rates, st.sampled_from([(1.0, 1.0), (2.0, 0.7)]), st.integers(0, 999))
def test_vtrace_equals_the_sum_of_its_definition(steps, gamma, lam, bars, seed):
    log_ratio = np.random.default_rng(seed).normal(0, 0.8, steps[0].shape).astype(np.float32)
    rho_bar, c_bar = bars
    advantage, target = vtrace_advantages(
        *steps, log_ratio, gamma=gamma, lam=lam, rho_bar=rho_bar, c_bar=c_bar
    )
    slow_advantage, slow_target = slow_vtrace(steps, log_ratio, gamma, lam, rho_bar, c_bar)
    np.testing.assert_allclose(advantage, slow_advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(target, slow_target, rtol=1e-5, atol=1e-5)


@given(step_arrays(), rates, rates)
def test_vtrace_targets_with_ratio_one_are_the_gae_returns(steps, gamma, lam):
    _, returns = gae_advantages(*steps, gamma=gamma, lam=lam)
    _, target = vtrace_advantages(*steps, np.zeros(steps[0].shape), gamma=gamma, lam=lam)
    np.testing.assert_allclose(target, returns, rtol=1e-6, atol=1e-6)


def column(*entries, dtype=np.float64):
    return np.array(entries, dtype=dtype)[:, None]


def test_gae_of_a_case_computed_by_hand():
    # gamma = lam = 0.5; deltas: 1 + 1 - 1 = 1, 2 + 0 - 2 = 0 (terminated), 3 + 2 - 3 = 2.
    advantage, returns = gae_advantages(
        column(1, 2, 3),
        column(0, 1, 0, dtype=bool),
        column(0, 0, 0, dtype=bool),
        column(1, 2, 3, 4),
        column(0, 0, 0),
        gamma=0.5,
        lam=0.5,
    )
    np.testing.assert_array_equal(advantage, column(1, 0, 2, dtype=np.float32))
    np.testing.assert_array_equal(returns, column(2, 2, 5, dtype=np.float32))


def test_vtrace_of_a_case_computed_by_hand():
    # Ratios 0.5 and 3 (capped at 1). delta = 0.5 (1 + 2 - 1) = 1 and 1 (2 + 4 - 2) = 4; gamma = 1.
    # vs_1 = 2 + 4 = 6; vs_0 = 1 + 1 + 0.5 * 4 = 4. A_1 = 4; A_0 = 0.5 (1 + 6 - 1) = 3.
    advantage, target = vtrace_advantages(
        column(1, 2),
        column(0, 0, dtype=bool),
        column(0, 0, dtype=bool),
        column(1, 2, 4),
        column(0, 0),
        np.log(column(0.5, 3)),
        gamma=1.0,
        lam=1.0,
    )
    np.testing.assert_allclose(advantage, column(3, 4), rtol=1e-6)
    np.testing.assert_allclose(target, column(4, 6), rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [(True, False, 1.0), (False, True, 101.0), (True, True, 1.0)],
    ids=["terminated", "truncated", "both"],
)
def test_only_truncation_bootstraps_at_the_end_of_an_episode(terminated, truncated, target):
    # A counting episode ends at its third step with reward 1; V is 100 everywhere, and 100 too for
    # the true last observation; the value of the reset observation (-999) must never be read.
    _, returns = gae_advantages(
        column(0, 0, 1),
        column(0, 0, terminated, dtype=bool),
        column(0, 0, truncated, dtype=bool),
        column(100, 100, 100, -999),
        column(-999, -999, 100),
        gamma=1.0,
        lam=1.0,
    )
    assert returns[2, 0] == target
    assert returns[0, 0] == target


def test_value_of_the_reset_observation_does_not_pay_for_ending_an_episode():
    # Episode ends at t = 1; V(reset) = 100. Read one index late, the end would earn a bonus of +95.
    advantage, _ = gae_advantages(
        column(1, 1, 1),
        column(0, 1, 0, dtype=bool),
        column(0, 0, 0, dtype=bool),
        column(5, 5, 100, 100),
        column(0, 0, 0),
        gamma=1.0,
        lam=1.0,
    )
    assert advantage[1, 0] == -4.0
    assert advantage[0, 0] == 1.0 - 4.0


@given(step_arrays(), st.integers(0, 8), st.booleans())
def test_nothing_after_a_boundary_moves_what_is_before_it(steps, at, terminates):
    reward, terminated, truncated, value, _ = steps
    at = min(at, len(reward) - 1)
    (terminated if terminates else truncated)[at] = True
    before, _ = gae_advantages(*steps, gamma=0.99, lam=0.95)
    ratio = np.zeros(reward.shape)
    traced, _ = vtrace_advantages(*steps, ratio, gamma=0.99, lam=0.95)
    reward[at + 1 :] += 1e6
    value[at + 1 :] -= 1e6
    after, _ = gae_advantages(*steps, gamma=0.99, lam=0.95)
    traced_after, _ = vtrace_advantages(*steps, ratio, gamma=0.99, lam=0.95)
    np.testing.assert_array_equal(after[: at + 1], before[: at + 1])
    np.testing.assert_array_equal(traced_after[: at + 1], traced[: at + 1])


def test_estimators_leave_their_arguments_alone():
    rng = np.random.default_rng(0)
    shape = (4, 3)
    steps = (
        rng.standard_normal(shape),
        rng.random(shape) < 0.3,
        rng.random(shape) < 0.3,
        rng.standard_normal((5, 3)),
        rng.standard_normal(shape),
    )
    copies = [array.copy() for array in steps]
    gae_advantages(*steps, gamma=0.9, lam=0.9)
    vtrace_advantages(*steps, np.zeros(shape), gamma=0.9, lam=0.9)
    for array, copy in zip(steps, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_wrong_shape_is_named_with_both_shapes():
    bits = np.zeros((3, 2), dtype=bool)
    with pytest.raises(ValueError, match=r"value_TB: expected shape \(4, 2\), got \(3, 2\)"):
        next_values(bits, bits, np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="log_ratio_TB"):
        vtrace_advantages(
            np.zeros((3, 2)), bits, bits, np.zeros((4, 2)), np.zeros((3, 2)), np.zeros(3),
            gamma=1.0, lam=1.0,
        )  # fmt: skip


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=30, unique=True))
def test_normalised_advantages_have_mean_zero_and_deviation_at_most_one(entries):
    scaled = normalized(np.array(entries, dtype=np.float32)).astype(np.float64)
    assert abs(scaled.mean()) < 1e-5
    assert scaled.std() < 1 + 1e-5


@pytest.mark.parametrize("entries", [[], [3.5], [0.1] * 7, [123.4] * 2048])
def test_advantages_without_spread_normalise_to_exactly_zero(entries):
    scaled = normalized(np.array(entries, dtype=np.float32))
    assert scaled.shape == (len(entries),)
    assert not scaled.any()


def test_normalised_two_entries_are_plus_and_minus_one():
    np.testing.assert_allclose(normalized(np.array([1.0, 3.0])), [-1, 1], atol=1e-7)


def test_estimators_travel_by_name_and_fields():
    for record in (gae(0.99, 0.95, scale_rewards=True), vtrace(gamma=0.99, lam=1.0, rho_bar=2.0)):
        assert rebuild(describe(record, where="test"), where="test") == record


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: gae(gamma=1.1, lam=0.9),
        lambda: gae(gamma=0.9, lam=-0.1),
        lambda: vtrace(gamma=0.9, lam=0.9, rho_bar=0.5, c_bar=1.0),
        lambda: vtrace(gamma=0.9, lam=0.9, c_bar=0.0),
    ],
)
def test_estimators_outside_their_range_are_refused(wrong):
    with pytest.raises(BadInput, match="expected"):
        wrong()


def test_input_that_is_not_finite_passes_through_in_silence():
    assert not np.isfinite(normalized(np.array([np.inf, 1.0]))).any()
    advantage, _ = gae_advantages(
        column(1, np.inf),
        column(0, 0, dtype=bool),
        column(0, 0, dtype=bool),
        column(0, np.inf, np.inf),
        column(0, 0),
        gamma=1.0,
        lam=1.0,
    )
    assert not np.isfinite(advantage).any()
