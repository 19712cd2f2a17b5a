"""Distributions in numpy against torch: log-probs, entropy and derivatives."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic
from rlinf_async.models.heads import make_head

STATE = (ArraySpec(name="state", shape=(3,), dtype="float32"),)


def gaussian(size):
    action = ActionSpec(
        kind="continuous", shape=(size,), dtype="float32", low=(-1.0,) * size, high=(1.0,) * size
    )
    return GaussianActorCritic(Spaces(observation=STATE, action=action), hidden=(4,))


def categorical(count):
    action = ActionSpec(kind="discrete", shape=(), dtype="int64", count=count)
    return CategoricalActorCritic(Spaces(observation=STATE, action=action), hidden=(4,))


def compare(policy, action, distribution_of, entropy_weight, rows, seed, own=None):
    rng = np.random.default_rng(seed)
    pair = policy.to_kernel()
    if own is not None:
        pair.weights["log_std"][:] = own
    head = make_head(pair, rows)
    output = rng.standard_normal((pair.outputs, rows)).astype(np.float32)
    d_logp = rng.standard_normal(rows).astype(np.float32)
    logp = head.logp(output, action)
    d_output = np.empty_like(output)
    entropy = head.entropy()
    head.backward(d_logp, entropy_weight, d_output)
    leaf = torch.tensor(output, dtype=torch.float64, requires_grad=True)
    log_std = None if own is None else torch.tensor(own, dtype=torch.float64, requires_grad=True)
    expected_logp, expected_entropy = distribution_of(leaf, log_std)
    loss = (expected_logp * torch.tensor(d_logp)).sum() - entropy_weight * expected_entropy.mean()
    loss.backward()
    np.testing.assert_allclose(logp, expected_logp.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, expected_entropy.mean().item(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_output, leaf.grad, rtol=1e-3, atol=1e-4)
    if log_std is not None:
        scale = 1.0 + np.abs(log_std.grad.numpy()).max()
        np.testing.assert_allclose(pair.gradients["log_std"], log_std.grad, atol=1e-4 * scale)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.sampled_from([0.0, 0.01]), st.integers(0, 999))
def test_gaussian_equals_torch(size, rows, entropy_weight, seed):
    rng = np.random.default_rng(seed + 1)
    action = rng.standard_normal((size, rows)).astype(np.float32)
    own = rng.normal(0.0, 0.5, size).astype(np.float32)

    def distribution_of(mean, log_std):
        normal = torch.distributions.Normal(mean, log_std.exp()[:, None])
        return normal.log_prob(torch.tensor(action)).sum(0), normal.entropy().sum(0)

    compare(gaussian(size), action, distribution_of, entropy_weight, rows, seed, own)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.sampled_from([0.0, 0.01]), st.integers(0, 999))
def test_categorical_equals_torch(count, rows, entropy_weight, seed):
    action = np.random.default_rng(seed + 1).integers(0, count, rows)

    def distribution_of(logits, _):
        choice = torch.distributions.Categorical(logits=logits.T)
        return choice.log_prob(torch.tensor(action)), choice.entropy()

    compare(categorical(count), action, distribution_of, entropy_weight, rows, seed)
