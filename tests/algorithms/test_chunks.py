"""Chunks of actions in advantages, statistics and losses, against slow loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms.advantages import chunk_rewards, gae_advantages
from rlinf_async.algorithms.normalizers import ReturnScaler, sub_steps


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
