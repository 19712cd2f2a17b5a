"""Masked and action-level estimators against slow references and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.algorithms import gae, n_step, raw_returns
from rlinf_async.algorithms.advantages import gae_advantages
from rlinf_async.algorithms.batching import estimate
from rlinf_async.algorithms.returns import (
    action_gae_advantages,
    masked_gae_advantages,
    n_step_advantages,
    rewards_to_go,
)
from rlinf_async.errors import BadInput
from tests.fixtures.batches import random_batch, vector_spaces

rates = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@st.composite
def masked_steps(draw):
    """reward, valid, terminated, truncated, value [L+1], final value; whole slots may be masked."""
    length, slots = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([0.0, 0.3, 1.0]))
    shape = (length, slots)
    return (
        rng.standard_normal(shape),
        rng.random(shape) < draw(st.sampled_from([0.0, 0.5, 1.0])),
        rng.random(shape) < rate,
        rng.random(shape) < rate,
        rng.standard_normal((length + 1, slots)).astype(np.float32),
        rng.standard_normal(shape).astype(np.float32),
    )


def valid_lists(steps, slot):
    """One slot's valid entries as plain lists: what is left when the others are taken out."""
    reward, valid, terminated, truncated, value, final_value = steps
    kept = [entry for entry in range(len(reward)) if valid[entry, slot]]
    follows = []
    for at, entry in enumerate(kept):
        behind = kept[at + 1] if at + 1 < len(kept) else len(reward)
        if terminated[entry, slot]:
            follows.append(0.0)
        elif truncated[entry, slot]:
            follows.append(float(final_value[entry, slot]))
        else:
            follows.append(float(value[behind, slot]))
    rewards = [float(reward[entry, slot]) for entry in kept]
    cut = [bool(terminated[entry, slot] or truncated[entry, slot]) for entry in kept]
    values = [float(value[entry, slot]) for entry in kept]
    return kept, rewards, cut, values, follows


def slow_masked_gae(steps, gamma, lam):
    advantage, returns = np.zeros(steps[0].shape), np.zeros(steps[0].shape)
    for slot in range(steps[0].shape[1]):
        kept, rewards, cut, values, follows = valid_lists(steps, slot)
        for at, entry in enumerate(kept):
            weight = 1.0
            for one in range(at, len(kept)):
                delta = rewards[one] + gamma * follows[one] - values[one]
                advantage[entry, slot] += weight * delta
                weight *= gamma * lam
                if cut[one]:
                    break
            returns[entry, slot] = advantage[entry, slot] + values[at]
    return advantage, returns


def slow_n_step(steps, gamma, count):
    returns = np.zeros(steps[0].shape)
    for slot in range(steps[0].shape[1]):
        kept, rewards, cut, _, follows = valid_lists(steps, slot)
        for at, entry in enumerate(kept):
            done = 0
            for one in range(at, min(at + count, len(kept))):
                returns[entry, slot] += gamma**done * rewards[one]
                done += 1
                if cut[one]:
                    break
            returns[entry, slot] += gamma**done * follows[one]
    return returns


@given(masked_steps(), rates, rates)
def test_masked_gae_is_gae_of_what_is_left(steps, gamma, lam):
    found = masked_gae_advantages(*steps, gamma=gamma, lam=lam)
    for got, slow in zip(found, slow_masked_gae(steps, gamma, lam), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, slow, rtol=1e-5, atol=1e-5)


@given(masked_steps(), rates, rates)
def test_with_every_entry_valid_both_forms_of_gae_agree(steps, gamma, lam):
    reward, _, *rest = steps
    everywhere = np.ones(reward.shape, np.bool_)
    masked = masked_gae_advantages(reward, everywhere, *rest, gamma=gamma, lam=lam)
    plain = gae_advantages(reward, *rest, gamma=gamma, lam=lam)
    for one, other in zip(masked, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@given(masked_steps(), rates, st.integers(1, 10))
def test_n_step_returns_equal_their_definition(steps, gamma, count):
    advantage, returns = n_step_advantages(*steps, gamma=gamma, steps=count)
    np.testing.assert_allclose(returns, slow_n_step(steps, gamma, count), rtol=1e-5, atol=1e-5)
    expected = np.where(steps[1], returns - steps[4][:-1], 0.0)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)


@given(masked_steps(), rates)
def test_one_step_and_all_steps_are_gae_without_and_with_full_trace(steps, gamma):
    for count, lam in ((1, 0.0), (len(steps[0]), 1.0)):
        n_step = n_step_advantages(*steps, gamma=gamma, steps=count)
        trace = masked_gae_advantages(*steps, gamma=gamma, lam=lam)
        np.testing.assert_allclose(n_step[0], trace[0], rtol=1e-4, atol=1e-5)


@given(masked_steps(), rates)
def test_raw_returns_are_the_rewards_still_to_come(steps, gamma):
    reward, valid, terminated, truncated, _, _ = steps
    slow = np.zeros(reward.shape)
    for slot in range(reward.shape[1]):
        kept, rewards, cut, _, _ = valid_lists(steps, slot)
        for at, entry in enumerate(kept):
            for one in range(at, len(kept)):
                slow[entry, slot] += gamma ** (one - at) * rewards[one]
                if cut[one]:
                    break
    found = rewards_to_go(reward, valid, terminated | truncated, gamma=gamma)
    np.testing.assert_allclose(found, slow, rtol=1e-5, atol=1e-5)


@st.composite
def chunk_steps(draw):
    horizon, slots, chunk = (draw(st.integers(1, 4)) for _ in range(3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    executed = rng.integers(1, chunk + 1, (horizon, slots))
    ends = rng.random((horizon, slots)) < 0.4
    ends |= executed < chunk  # a chunk is cut short only by an episode's end
    both = rng.random((horizon, slots))
    return (
        rng.standard_normal((horizon, slots, chunk)),
        executed,
        ends & (both < 0.6),
        ends & ((both >= 0.6) | (both < 0.2)),
        rng.standard_normal((horizon + 1, slots, chunk)).astype(np.float32),
        rng.standard_normal((horizon, slots)).astype(np.float32),
    )


@given(chunk_steps(), rates, rates)
def test_action_level_gae_is_gae_over_the_executed_actions(steps, gamma, lam):
    reward, executed, terminated, truncated, value, final_value = steps
    advantage, returns = action_gae_advantages(*steps, gamma=gamma, lam=lam)
    horizon, slots, _ = reward.shape
    slow = np.zeros(reward.shape)
    for slot in range(slots):
        line = [(t, c) for t in range(horizon) for c in range(executed[t, slot])]
        carry = 0.0
        for at in reversed(range(len(line))):
            t, c = line[at]
            last = c == executed[t, slot] - 1
            follows = value[t + 1, slot, 0] if last else value[t, slot, c + 1]
            if last and (terminated[t, slot] or truncated[t, slot]):
                carry = 0.0
                follows = 0.0 if terminated[t, slot] else final_value[t, slot]
            delta = reward[t, slot, c] + gamma * float(follows) - float(value[t, slot, c])
            carry = slow[t, slot, c] = delta + gamma * lam * carry
    np.testing.assert_allclose(advantage, slow, rtol=1e-5, atol=1e-5)
    valid = np.arange(reward.shape[-1]) < executed[..., None]
    np.testing.assert_allclose(
        returns, np.where(valid, slow + value[:-1], 0.0), rtol=1e-5, atol=1e-5
    )


def test_action_level_gae_by_hand():
    """Two chunks of two actions, one slot, gamma 0.5, lambda 1.

    Rewards 1 2 | 4 x, values 1 2 | 3 x, the second chunk truncated after its first action with
    V(final) = 8. deltas: 1 + .5*2 - 1 = 1;  2 + .5*3 - 2 = 1.5;  4 + .5*8 - 3 = 5.
    A: 5;  1.5 + .5*5 = 4;  1 + .5*4 = 3.  Returns: 8, 6, 4.
    """
    advantage, returns = action_gae_advantages(
        np.array([[[1.0, 2.0]], [[4.0, 99.0]]]),
        np.array([[2], [1]]),
        np.array([[False], [False]]),
        np.array([[False], [True]]),
        np.array([[[1.0, 2.0]], [[3.0, 99.0]], [[99.0, 99.0]]], dtype=np.float32),
        np.array([[99.0], [8.0]], dtype=np.float32),
        gamma=0.5,
        lam=1.0,
    )
    assert advantage.tolist() == [[[3.0, 4.0]], [[5.0, 0.0]]]
    assert returns.tolist() == [[[4.0, 6.0]], [[8.0, 0.0]]]


def test_n_step_by_hand():
    """Rewards 1 2 4, values 10 20 30 | 40, gamma 0.5, two steps, nothing ends.

    R = 1 + .5*2 + .25*30 = 9.5;  2 + .5*4 + .25*40 = 14;  4 + .5*40 = 24.
    """
    steps = np.array([[1.0], [2.0], [4.0]])
    none = np.zeros(steps.shape, np.bool_)
    value = np.array([[10.0], [20.0], [30.0], [40.0]], dtype=np.float32)
    advantage, returns = n_step_advantages(
        steps, ~none, none, none, value, value[:-1], gamma=0.5, steps=2
    )
    assert returns.ravel().tolist() == [9.5, 14.0, 24.0]
    assert advantage.ravel().tolist() == [-0.5, -6.0, -6.0]


def test_arrays_of_other_shapes_are_refused():
    ones = np.ones((3, 2))
    with pytest.raises(ValueError, match="argument 1"):
        rewards_to_go(ones, np.ones((2, 2), np.bool_), np.ones((3, 2), np.bool_), gamma=1.0)


@pytest.mark.parametrize(
    ("named", "same"),
    [
        (n_step(gamma=0.9, steps=1), gae(gamma=0.9, lam=0.0)),
        (n_step(gamma=0.9, steps=99), gae(gamma=0.9, lam=1.0)),
    ],
)
def test_named_estimators_reach_the_entries_of_a_batch(named, same):
    batch = random_batch(vector_spaces(), horizon=6, slots=3)
    value = batch["value"].copy()
    steps = (batch["reward"], batch["terminated"], batch["truncated"], value, batch["final_value"])
    ratio = np.zeros(batch["reward"].shape)
    for one, other in zip(
        estimate(named, *steps, ratio, 0.9), estimate(same, *steps, ratio, 0.9), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_named_raw_returns_read_no_value():
    batch = random_batch(vector_spaces(), horizon=6, slots=3)
    steps = (batch["reward"], batch["terminated"], batch["truncated"])
    values = (np.full((7, 3), np.nan, np.float32), np.full((6, 3), np.nan, np.float32))
    advantage, returns = estimate(raw_returns(gamma=0.9), *steps, *values, np.zeros((6, 3)), 0.9)
    boundary = batch["terminated"] | batch["truncated"]
    expected = rewards_to_go(batch["reward"], np.ones((6, 3), np.bool_), boundary, gamma=0.9)
    np.testing.assert_array_equal(advantage, expected)
    np.testing.assert_array_equal(returns, expected)


def test_estimators_refuse_what_cannot_be():
    with pytest.raises(BadInput, match="steps"):
        n_step(gamma=0.9, steps=0)
    with pytest.raises(BadInput, match="gamma"):
        raw_returns(gamma=1.5)
