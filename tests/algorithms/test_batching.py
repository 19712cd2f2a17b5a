"""From segments to entries: order, normalisation, reward scale and what corrections recompute."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_async.algorithms import PPOLoss, gae, vtrace
from rlinf_async.algorithms.advantages import gae_advantages, vtrace_advantages
from rlinf_async.algorithms.batching import (
    even_parts,
    minibatches,
    permutation,
    sample_weights,
)
from rlinf_async.algorithms.learner import preparation
from rlinf_async.algorithms.normalizers import Moments, Statistics
from rlinf_async.errors import EngineError
from tests.fixtures.batches import random_batch, vector_spaces

SPACES = vector_spaces(widths={"state": 3, "goal": 2})
GAE = gae(0.9, 0.8)


class LinearEvaluator:
    """A policy simple enough to be computed by hand, which counts its calls."""

    def __init__(self):
        self.calls = []

    def logp(self, observations, action, executed=None):
        self.calls.append(("logp", len(action)))
        return (0.1 * observations["x"][:, 0] - 1.0).astype(np.float32)

    def value(self, observations):
        self.calls.append(("value", len(observations["x"])))
        return observations["x"].sum(axis=1)


def statistics(mean=0.5, var=4.0):
    moments = {
        spec.name: Moments(count=9.0, mean=np.full(spec.shape, mean), var=np.full(spec.shape, var))
        for spec in SPACES.observation
    }
    return Statistics(observations=moments, returns=Moments.initial())


def prepare(
    batch, *, loss=None, advantages=GAE, version=0, scales=None, normalized=True, **changes
):
    evaluator = changes.pop("evaluator", LinearEvaluator())
    return preparation(loss or PPOLoss(), advantages, normalized=normalized, joined=True)(
        batch,
        statistics=statistics(),
        scales=scales or {},
        version=version,
        evaluator=evaluator,
    )


def test_entries_are_in_time_major_order_with_observations_joined_by_declared_order():
    batch = random_batch(SPACES, horizon=4, slots=3)
    prepared = prepare(batch)
    t, b = 2, 1
    entry = t * 3 + b
    raw = np.concatenate([batch["obs/state"][t, b], batch["obs/goal"][t, b]])
    expected = np.clip((raw - 0.5) / np.sqrt(4.0 + 1e-8), -10, 10)
    np.testing.assert_allclose(prepared.observations["x"][entry], expected, rtol=1e-6)
    np.testing.assert_array_equal(prepared.action[entry], batch["action"][t, b])
    assert prepared.logp_old[entry] == batch["logp"][t, b]
    assert prepared.value_old[entry] == batch["value"][t, b]
    assert len(prepared) == 12


def test_observations_stay_raw_without_normalisation():
    batch = random_batch(SPACES, horizon=2, slots=2)
    prepared = prepare(batch, normalized=False)
    np.testing.assert_array_equal(
        prepared.observations["x"][:, :3], batch["obs/state"][:-1].reshape(-1, 3)
    )


def test_large_observations_are_clipped_after_normalising():
    batch = random_batch(SPACES, horizon=2, slots=2)
    batch["obs/state"][0, 0] = 1e6
    assert prepare(batch).observations["x"][0, 0] == 10.0


def test_rewards_are_scaled_by_the_version_that_acted_and_clipped():
    batch = random_batch(SPACES, horizon=3, slots=2, end_rate=0.0)
    batch["reward"][...] = [[4.0, 4.0], [4.0, -1e9], [4.0, 4.0]]
    batch["version"] = np.array([1, 1, 2])
    batch["value"][...] = 0.0
    prepared = prepare(
        batch, advantages=gae(0.0, 0.0, scale_rewards=True), version=2, scales={1: 2.0, 2: 4.0}
    )
    np.testing.assert_array_equal(prepared.advantage, [2, 2, 2, -10, 1, 1])


def test_a_missing_reward_scale_is_named():
    batch = random_batch(SPACES, horizon=2, slots=2, version=3)
    with pytest.raises(EngineError, match="no reward scale of version 3"):
        prepare(batch, advantages=gae(0.9, 0.9, scale_rewards=True), version=3, scales={2: 1.0})


@pytest.mark.parametrize(
    ("loss", "advantages"),
    [(PPOLoss(), GAE), (PPOLoss(correction="decoupled"), GAE), (PPOLoss(), vtrace(0.9, 0.8))],
    ids=["plain", "decoupled", "vtrace"],
)
def test_a_batch_of_this_version_is_plain_ppo_whatever_the_correction(loss, advantages):
    batch = random_batch(SPACES, horizon=3, slots=2, version=5)
    evaluator = LinearEvaluator()
    prepared = prepare(batch, loss=loss, advantages=advantages, version=5, evaluator=evaluator)
    assert evaluator.calls == []
    assert prepared.weight is None
    assert prepared.logp_base is prepared.logp_old
    np.testing.assert_array_equal(prepared.logp_base, batch["logp"].reshape(-1))


def test_plain_ppo_recomputes_nothing_for_older_versions():
    batch = random_batch(SPACES, horizon=3, slots=2, version=4)
    evaluator = LinearEvaluator()
    prepared = prepare(batch, version=5, evaluator=evaluator)
    assert evaluator.calls == []
    np.testing.assert_array_equal(prepared.logp_base, prepared.logp_old)


def test_decoupled_entries_of_this_version_keep_their_log_prob_and_weight_one():
    batch = random_batch(SPACES, horizon=3, slots=2)
    batch["version"] = np.array([4, 5, 5])
    loss = PPOLoss(correction="decoupled", weight_cap=1.5)
    prepared = prepare(batch, loss=loss, version=5)
    own = prepared.version == 5
    assert own.sum() == 4
    np.testing.assert_array_equal(prepared.logp_base[own], prepared.logp_old[own])
    assert (prepared.weight[own] == 1.0).all()
    fresh = 0.1 * prepared.observations["x"][~own, 0] - 1.0
    np.testing.assert_allclose(prepared.logp_base[~own], fresh, rtol=1e-6)
    np.testing.assert_allclose(
        prepared.weight[~own],
        np.minimum(np.exp(fresh - prepared.logp_old[~own]), 1.5),
        rtol=1e-5,
    )
    advantage, _ = gae_advantages(
        *(batch[n] for n in ("reward", "terminated", "truncated", "value", "final_value")),
        gamma=0.9,
        lam=0.8,
    )
    np.testing.assert_array_equal(prepared.advantage, advantage.reshape(-1))


def test_sample_weights_above_the_cap_are_truncated_or_dropped():
    log_ratio = np.log(np.array([0.5, 1.0, 2.0, 3.0], dtype=np.float32))
    np.testing.assert_allclose(sample_weights(log_ratio, 2.0, "truncate"), [0.5, 1, 2, 2])
    np.testing.assert_allclose(sample_weights(log_ratio, 2.5, "drop"), [0.5, 1, 2, 0])
    assert np.isfinite(sample_weights(np.array([1e4], dtype=np.float32), 2.0, "truncate")).all()


def test_vtrace_uses_this_versions_log_probs_and_values_everywhere():
    batch = random_batch(SPACES, horizon=4, slots=3, version=4, end_rate=0.4)
    original = batch["final_value"].copy()
    prepared = prepare(batch, advantages=vtrace(0.9, 0.8), version=5)
    np.testing.assert_array_equal(batch["final_value"], original, "the row is only borrowed")

    def seen(kind):
        joined = np.concatenate([batch[f"{kind}/state"], batch[f"{kind}/goal"]], axis=-1)
        return np.clip((joined - 0.5) / 2.0, -10, 10)

    value, final_value = seen("obs").sum(axis=-1), seen("final").sum(axis=-1)
    logp = 0.1 * seen("obs")[:-1, :, 0] - 1.0
    advantage, returns = vtrace_advantages(
        batch["reward"],
        batch["terminated"],
        batch["truncated"],
        value,
        final_value,
        logp - batch["logp"],
        gamma=0.9,
        lam=0.8,
    )
    np.testing.assert_allclose(prepared.advantage, advantage.reshape(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(prepared.returns, returns.reshape(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(prepared.value_old, value[:-1].reshape(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(prepared.logp_base, logp.reshape(-1), rtol=1e-4, atol=1e-4)


def test_vtrace_computes_values_of_truncated_ends_only():
    batch = random_batch(SPACES, horizon=4, slots=3, version=4, end_rate=0.4)
    evaluator = LinearEvaluator()
    prepare(batch, advantages=vtrace(0.9, 0.8), version=5, evaluator=evaluator)
    ends = int((batch["truncated"] & ~batch["terminated"]).sum())
    assert evaluator.calls == [("logp", 12), ("value", 15), ("value", ends)]


def test_version_may_differ_from_slot_to_slot():
    batch = random_batch(SPACES, horizon=2, slots=2)
    batch["version"] = np.array([[4, 5], [4, 5]])
    prepared = prepare(batch, loss=PPOLoss(correction="decoupled"), version=5)
    np.testing.assert_array_equal(prepared.version, [4, 5, 4, 5])
    assert (prepared.weight[1::2] == 1.0).all()


def test_orders_depend_on_seed_version_and_epoch_and_nothing_else():
    first = permutation(100, seed=1, version=2, epoch=3)
    np.testing.assert_array_equal(first, permutation(100, seed=1, version=2, epoch=3))
    assert sorted(first) == list(range(100))
    for other in ({"seed": 0}, {"version": 0}, {"epoch": 0}):
        words = {"seed": 1, "version": 2, "epoch": 3, **other}
        assert not np.array_equal(first, permutation(100, **words))


@pytest.mark.parametrize(
    ("count", "minibatch", "sizes"),
    [(8, 4, [4, 4]), (9, 4, [4, 5]), (3, 8, [3]), (1, 1, [1]), (11, 3, [3, 4, 4])],
)
def test_no_mini_batch_is_a_small_remainder(count, minibatch, sizes):
    parts = minibatches(count, minibatch)
    assert [at.stop - at.start for at in parts] == sizes
    assert (parts[0].start, parts[-1].stop) == (0, count)


def test_there_are_never_more_parts_than_entries():
    assert even_parts(2, 4) == [slice(0, 1), slice(1, 2)]
