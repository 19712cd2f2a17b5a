"""Running moments and return scaling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.algorithms.normalizers import (
    Moments,
    ReturnScaler,
    Statistics,
    affine,
    normalize,
)
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from tests.fixtures.batches import random_batch, vector_spaces


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 999))
def test_merged_moments_equal_numpy_over_the_concatenation(sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(5, 3, (size, 2)).astype(np.float32) for size in sizes]
    merged = Moments.initial((2,))
    for part in parts:
        merged = merged.merged(Moments.of(part))
    everything = np.concatenate(parts).astype(np.float64)
    assert merged.count == len(everything)
    np.testing.assert_allclose(merged.mean, everything.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged.var, everything.var(axis=0), rtol=1e-10, atol=1e-12)


def test_moments_of_a_constant_far_from_zero_have_no_variance():
    moments = Moments.of(np.full((1000, 1), 1e6, dtype=np.float32))
    moments = moments.merged(moments)
    assert moments.var[0] == 0.0


def test_merging_nothing_changes_nothing():
    moments = Moments.of(np.arange(6.0).reshape(3, 2))
    assert moments.merged(Moments.initial((2,))) is moments
    assert Moments.initial((2,)).merged(moments) is moments


def counted(batch, name, *, fresh):
    """Every observation that shall enter, collected one by one."""
    obs, final = batch[f"obs/{name}"], batch[f"final/{name}"]
    ended = batch["terminated"] | batch["truncated"]
    seen = []
    for t in range(len(ended)):
        for b in range(ended.shape[1]):
            if t == 0 and fresh:
                seen.append(obs[0, b])
            if ended[t, b]:
                seen.append(final[t, b])
            seen.append(obs[t + 1, b])
    return np.array(seen, dtype=np.float64)


@pytest.mark.parametrize("fresh", [True, False])
def test_each_observation_enters_once_the_true_last_and_the_reset_one_included(fresh):
    spaces = vector_spaces(widths={"state": 3, "goal": 2})
    batch = random_batch(spaces, horizon=7, slots=5, seed=1)
    after = Statistics.initial(spaces).merged(batch, cells=[2, 2, 1], fresh=fresh)
    for name in ("state", "goal"):
        expected = counted(batch, name, fresh=fresh)
        moments = after.observations[name]
        assert moments.count == len(expected)
        np.testing.assert_allclose(moments.mean, expected.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.var, expected.var(axis=0), rtol=1e-12)


def test_two_segments_count_the_observation_at_their_seam_once():
    spaces = vector_spaces()
    whole = random_batch(spaces, horizon=6, slots=2, seed=3)
    cut = {0: slice(0, 3), 1: slice(3, 6)}
    halves = [
        {
            "obs/state": whole["obs/state"][at.start : at.stop + 1],
            **{name: whole[name][at] for name in ("final/state", "terminated", "truncated")},
        }
        for at in cut.values()
    ]
    start = Statistics.initial(spaces)
    once = start.merged(whole, cells=[2], fresh=True).observations["state"]
    twice = start.merged(halves[0], cells=[2], fresh=True).merged(halves[1], cells=[2], fresh=False)
    assert twice.observations["state"].count == once.count
    np.testing.assert_allclose(twice.observations["state"].mean, once.mean, rtol=1e-12)
    np.testing.assert_allclose(twice.observations["state"].var, once.var, rtol=1e-12)


def test_cells_are_merged_one_after_the_other_in_order():
    spaces = vector_spaces()
    batch = random_batch(spaces, horizon=5, slots=4, end_rate=0.0)
    got = Statistics.initial(spaces).merged(batch, cells=[3, 1], fresh=False)
    expected = Moments.initial((3,))
    for at in (slice(0, 3), slice(3, 4)):
        expected = expected.merged(Moments.of(batch["obs/state"][1:, at].reshape(-1, 3)))
    np.testing.assert_array_equal(got.observations["state"].mean, expected.mean)
    np.testing.assert_array_equal(got.observations["state"].var, expected.var)


def test_observations_that_are_no_floats_have_no_statistics():
    action = ActionSpec(kind="discrete", shape=(), dtype="int64", count=2)
    image = ArraySpec(name="image", shape=(2, 2, 3), dtype="uint8")
    spaces = Spaces(observation=(image,), action=action)
    batch = random_batch(spaces, horizon=3, slots=2)
    after = Statistics.initial(spaces).merged(batch, cells=[2], fresh=True)
    assert after.observations["image"].count == 0


def test_statistics_survive_a_weights_row_unchanged():
    spaces = vector_spaces(widths={"state": 3, "goal": 2})
    batch = random_batch(spaces, horizon=4, slots=2)
    before = Statistics.initial(spaces).merged(batch, cells=[2], fresh=True)
    before = before.with_returns(batch["reward"], cells=[2])
    row = {name: np.zeros(values.shape) for name, values in before.fields().items()}
    before.to_row(row)
    after = Statistics.from_row(row, spaces)
    for name, values in before.fields().items():
        np.testing.assert_array_equal(after.fields()[name], values)
    row["mean/state"][...] = 7.0
    assert after.observations["state"].mean[0] != 7.0, "the row is only borrowed"


def test_version_zero_neither_shifts_nor_scales():
    statistics = Statistics.initial(vector_spaces())
    raw = np.array([[-3.0, 0.25, 11.0]], dtype=np.float32)
    seen = normalize(raw, *affine(statistics.observations["state"]))
    np.testing.assert_array_equal(seen, np.array([[-3.0, 0.25, 10.0]], dtype=np.float32))
    assert seen.dtype == np.float32
    assert statistics.reward_scale == pytest.approx(1.0, abs=1e-8)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 999))
def test_discounted_returns_equal_a_loop_and_live_on_over_batches(horizon, slots, seed):
    rng = np.random.default_rng(seed)
    scaler = ReturnScaler(slots, gamma=0.9)
    running = np.zeros(slots)
    for _ in range(3):
        reward = rng.standard_normal((horizon, slots))
        boundary = rng.random((horizon, slots)) < 0.3
        expected = np.zeros((horizon, slots))
        for t in range(horizon):
            for b in range(slots):
                running[b] = 0.9 * running[b] + reward[t, b]
                expected[t, b] = running[b]
                if boundary[t, b]:
                    running[b] = 0.0
        np.testing.assert_allclose(scaler.returns(reward, boundary), expected, rtol=1e-12)
        np.testing.assert_allclose(scaler.running, running, rtol=1e-12)


def test_reward_scale_is_the_deviation_of_the_discounted_return():
    spaces = vector_spaces()
    returns = np.random.default_rng(0).normal(3, 5, (10, 4))
    after = Statistics.initial(spaces).with_returns(returns, cells=[2, 2])
    assert after.returns.count == 40
    assert after.reward_scale == pytest.approx(np.sqrt(returns.var() + 1e-8), rel=1e-12)
