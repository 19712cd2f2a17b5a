"""Chunks of actions in advantages, statistics and losses, against slow loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms.advantages import (
    chunk_rewards,
    gae_advantages,
    vtrace,
    vtrace_advantages,
)
from rlinf_async.algorithms.batching import Preparation
from rlinf_async.algorithms.normalizers import ReturnScaler, Statistics, sub_steps
from tests.fixtures.batches import random_batch, vector_spaces


@st.composite
def chunked_segments(draw):
    """Rewards [T, B, C] with rubbish behind each end, sub-steps made, and the bits."""
    horizon, slots, chunk = (draw(st.integers(1, n)) for n in (5, 3, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    boundary = rng.random((horizon, slots)) < 0.4
    executed = np.where(boundary, rng.integers(1, chunk + 1, (horizon, slots)), chunk)
    terminated = boundary & (rng.random((horizon, slots)) < 0.6)
    truncated = boundary & (~terminated | (rng.random((horizon, slots)) < 0.3))
    reward = rng.normal(size=(horizon, slots, chunk))
    values = rng.normal(size=(horizon + 1, slots)), rng.normal(size=(horizon, slots))
    return reward, executed, terminated, truncated, *values


def slow_gae(reward, executed, terminated, truncated, value, final, gamma, lam, discount):
    """Chunk by chunk, sub-step by sub-step, slot by slot."""
    horizon, slots = executed.shape
    advantage = np.zeros((horizon, slots))
    for b in range(slots):
        following = 0.0
        for t in reversed(range(horizon)):
            m = executed[t, b]
            earned, decay = 0.0, gamma
            for i in range(m):
                earned += reward[t, b, i] * (gamma**i if discount == "step" else 1.0)
            if discount == "step":
                decay = gamma**m
            if terminated[t, b]:
                behind = 0.0
            elif truncated[t, b]:
                behind = final[t, b]
            else:
                behind = value[t + 1, b]
            delta = earned + decay * behind - value[t, b]
            cut = terminated[t, b] or truncated[t, b]
            following = delta + (0.0 if cut else decay * lam * following)
            advantage[t, b] = following
    return advantage


@settings(max_examples=150, deadline=None)
@given(chunked_segments(), st.sampled_from(["chunk", "step"]))
def test_advantages_of_chunks(segment, discount):
    reward, executed, *rest = segment
    per_chunk, gamma = chunk_rewards(reward, executed, gamma=0.9, discount=discount)
    terminated, truncated, value, final = rest
    found, _ = gae_advantages(per_chunk, terminated, truncated, value, final, gamma=gamma, lam=0.8)
    expected = slow_gae(reward, executed, *rest, 0.9, 0.8, discount)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def slow_vtrace(reward, executed, terminated, truncated, value, final, log_ratio, discount):
    """Advantages and targets entry by entry, backwards; gamma 0.9, lambda 0.8, caps 1.2 and 1."""
    advantage, target = np.zeros(executed.shape), np.zeros(executed.shape)
    for b in range(executed.shape[1]):
        excess = later = 0.0
        for t in reversed(range(len(executed))):
            made = executed[t, b]
            decay = 0.9**made if discount == "step" else 0.9
            weights = [0.9**i if discount == "step" else 1.0 for i in range(made)]
            earned = sum(w * r for w, r in zip(weights, reward[t, b], strict=False))
            cut = terminated[t, b] or truncated[t, b]
            behind = final[t, b] if cut else value[t + 1, b]
            behind = 0.0 if terminated[t, b] else behind
            ratio = np.exp(log_ratio[t, b])
            rho, trace = min(1.2, ratio), 0.8 * min(1.0, ratio)
            follows = behind if cut or t + 1 == len(executed) else later
            advantage[t, b] = rho * (earned + decay * follows - value[t, b])
            delta = rho * (earned + decay * behind - value[t, b])
            excess = delta + (0.0 if cut else decay * trace * excess)
            later = target[t, b] = value[t, b] + excess
    return advantage, target


@settings(max_examples=100, deadline=None)
@given(chunked_segments(), st.sampled_from(["chunk", "step"]), st.integers(0, 1000))
def test_vtrace_of_chunks(segment, discount, seed):
    reward, executed, *rest = segment
    log_ratio = np.random.default_rng(seed).normal(0.0, 0.5, executed.shape)
    per_chunk, gamma = chunk_rewards(reward, executed, gamma=0.9, discount=discount)
    found = vtrace_advantages(per_chunk, *rest, log_ratio, gamma=gamma, lam=0.8, rho_bar=1.2)
    expected = slow_vtrace(reward, executed, *rest, log_ratio, discount)
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-5)


class ExecutedPolicy:
    """Log-prob: the number of executed actions. Value: 0."""

    def logp(self, observations, action, executed=None):
        return executed.astype(np.float32)

    def value(self, observations):
        return np.zeros(len(observations["state"]), np.float32)


def test_recomputed_log_probs_leave_out_what_was_not_executed():
    spaces = vector_spaces(widths={"state": 3})
    batch = random_batch(spaces, horizon=4, slots=3, version=1)
    rng = np.random.default_rng(5)
    batch["executed"] = rng.integers(1, 4, (4, 3))
    batch["reward"] = rng.normal(size=(4, 3, 3))
    estimator = vtrace(gamma=0.9, lam=0.8, rho_bar=1.2, discount="step")
    prepared = Preparation(advantages=estimator, normalized=False, joined=False)(
        batch,
        statistics=Statistics.initial(spaces),
        scales={},
        version=2,
        evaluator=ExecutedPolicy(),
    )
    executed = batch["executed"]
    np.testing.assert_array_equal(prepared.executed, executed.reshape(-1))
    np.testing.assert_array_equal(prepared.logp_base, executed.reshape(-1).astype(np.float32))
    nothing = np.zeros((5, 3)), np.zeros((4, 3))
    bits = batch["terminated"], batch["truncated"]
    log_ratio = executed - batch["logp"]
    expected = slow_vtrace(batch["reward"], executed, *bits, *nothing, log_ratio, "step")
    np.testing.assert_allclose(prepared.advantage.reshape(4, 3), expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prepared.returns.reshape(4, 3), expected[1], rtol=1e-4, atol=1e-5)


def test_one_chunk_by_hand():
    # Three sub-steps were planned, the episode was truncated after two: 1 + 0.5 * 2, then
    # 0.25 * V(final) = 0.25 * 8; the 99 behind the end is never earned.
    reward = np.array([[[1.0, 2.0, 99.0]]])
    earned, gamma = chunk_rewards(reward, np.array([[2]]), gamma=0.5, discount="step")
    assert earned.tolist() == [[2.0]]
    assert gamma.tolist() == [[0.25]]
    bits = np.array([[False]]), np.array([[True]])
    value, final = np.array([[3.0], [7.0]]), np.array([[8.0]])
    advantage, returns = gae_advantages(earned, *bits, value, final, gamma=gamma, lam=0.9)
    assert advantage.tolist() == [[2.0 + 2.0 - 3.0]]
    assert returns.tolist() == [[4.0]]
    earned, gamma = chunk_rewards(reward, np.array([[2]]), gamma=0.5, discount="chunk")
    assert (earned.tolist(), gamma) == ([[3.0]], 0.5)


@settings(max_examples=80, deadline=None)
@given(chunked_segments(), chunked_segments())
def test_discounted_returns_run_over_simulator_steps(first, second):
    slots = min(first[1].shape[1], second[1].shape[1])
    scaler, running = ReturnScaler(slots, gamma=0.9), np.zeros(slots)
    for segment in (first, second):
        reward, executed, terminated, truncated = (part[:, :slots] for part in segment[:4])
        steps = sub_steps(reward, executed, terminated | truncated)
        returns, valid = scaler.returns(*steps), steps[2]
        expected = []
        for t in range(len(executed)):
            for i in range(reward.shape[2]):
                for b in range(slots):
                    if i >= executed[t, b]:
                        continue
                    running[b] = 0.9 * running[b] + reward[t, b, i]
                    expected.append((t * reward.shape[2] + i, b, running[b]))
                    ends = terminated[t, b] or truncated[t, b]
                    if ends and i == executed[t, b] - 1:
                        running[b] = 0.0
        assert valid.sum() == len(expected)
        for step, b, value in expected:
            assert returns[step, b] == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(scaler.running, running, rtol=1e-12)


def test_unexecuted_actions_have_no_gradient():
    from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces, chunked
    from rlinf_async.models import ActorCritic

    one = ActionSpec(
        kind="continuous", shape=(2,), dtype="float32", low=(-1.0,) * 2, high=(1.0,) * 2
    )
    spaces = Spaces(
        observation=(ArraySpec(name="state", shape=(3,), dtype="float32"),),
        action=chunked(one, 4),
        chunk=4,
    )
    module = ActorCritic(spaces, hidden=(8,)).to_module()
    action = torch.randn(5, 4, 2, requires_grad=True)
    executed = torch.tensor([1, 2, 3, 4, 4])
    logp, _, _ = module.evaluate({"state": torch.randn(5, 3)}, action, executed)
    logp.sum().backward()
    slope = action.grad.abs().sum(dim=2) > 0
    assert slope.tolist() == [[c < m for c in range(4)] for m in executed.tolist()]
