"""Heads for every kind of action, against torch.distributions and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributions

from rlinf_async.execution.spaces import ActionSpec
from rlinf_async.models.distributions import ActionHead, executed_sum
from tests.fixtures.actions import ALL, BOX, MIXED, chunked

COUNT = 6


def head_of(spec, **options):
    head = ActionHead(spec, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.linspace(-0.6, 0.3, parameter.numel()).reshape(parameter.shape))
    return head


def outputs_of(head, count=COUNT, seed=0):
    return torch.randn(count, head.outputs, generator=torch.Generator().manual_seed(seed))


def rng(seed=0):
    return np.random.default_rng(seed)


def reference(head, spec, output):
    """torch's distribution of a whole action of one kind, [N, D] as one event."""
    if spec.kind == "continuous":
        normal = distributions.Normal(output, head.parts[0].log_std[0].exp())
        return [distributions.Independent(normal, 1)]
    if spec.kind == "multi_binary":
        return [distributions.Independent(distributions.Bernoulli(logits=output), 1)]
    counts = spec.counts or (spec.count,)
    return [distributions.Categorical(logits=part) for part in output.split(counts, dim=1)]


@pytest.mark.parametrize("name", ["box", "choice", "choices", "even", "bits"])
def test_log_probs_and_entropies_are_those_of_torch(name):
    spec = ALL[name]
    head = head_of(spec)
    output = outputs_of(head)
    action = head.sample(output, rng())
    assert action.shape == (COUNT, *spec.shape)
    assert action.dtype == getattr(torch, spec.row_dtype)
    expected = reference(head, spec, output)
    flat = action.reshape(COUNT, -1).float()
    entries = [flat] if len(expected) == 1 and flat.shape[1] > 1 else list(flat.T)
    logp = sum(each.log_prob(part) for each, part in zip(expected, entries, strict=True))
    torch.testing.assert_close(head.logp(output, action), logp)
    entropy = sum(each.entropy() for each in expected)
    torch.testing.assert_close(head.entropy(output, action), entropy)


def test_squashed_log_probs_are_those_of_a_tanh_of_normals():
    head = head_of(BOX, squash=True)
    output = outputs_of(head)
    u = head.sample(output, rng())
    normal = distributions.Normal(output.double(), head.parts[0].log_std[0].exp().double())
    squashed = distributions.TransformedDistribution(normal, distributions.TanhTransform())
    expected = squashed.log_prob(torch.tanh(u.double())).sum(dim=1)
    torch.testing.assert_close(head.logp(output, u).double(), expected, rtol=1e-4, atol=1e-4)


def test_squashed_log_probs_stay_exact_where_the_tanh_is_flat():
    head = head_of(BOX, squash=True)
    u = torch.full((1, 3), 40.0)
    normal = distributions.Normal(u, head.parts[0].log_std[0].exp())
    # 1 - tanh(u)^2 = 4 exp(-2u) there, far below what float32 can tell from 0.
    expected = normal.log_prob(u).sum(dim=1) - 3 * (math.log(4.0) - 80.0)
    torch.testing.assert_close(head.logp(u, u), expected)


def test_squashed_entropy_estimates_the_integral_and_its_slope():
    spec = ActionSpec(kind="continuous", shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,))
    head = head_of(spec, squash=True)
    mean, log_std = 0.7, head.parts[0].log_std.item()
    output = torch.full((200_000, 1), mean, requires_grad=True)
    estimate = head.entropy(output, head.sample(output.detach(), rng())).mean()

    def exact(mean):
        u = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
        normal = distributions.Normal(mean, math.exp(log_std))
        density = normal.log_prob(u).exp()
        slope = torch.log(1 - torch.tanh(u) ** 2 + 1e-300).clamp(min=-60)
        return float(normal.entropy() + (density * slope).sum() * (u[1] - u[0]))

    assert estimate.item() == pytest.approx(exact(torch.tensor(mean)), abs=5e-3)
    estimate.backward()
    numeric = (exact(torch.tensor(mean + 1e-2)) - exact(torch.tensor(mean - 1e-2))) / 2e-2
    assert output.grad.sum().item() == pytest.approx(numeric, abs=1e-2)


def test_a_mixed_action_is_its_parts_side_by_side():
    head = head_of(MIXED)
    output = outputs_of(head)
    action = head.sample(output, rng())
    assert action.shape == (COUNT, 11)
    assert action.dtype == torch.float32
    logp, entropy, start, read = 0, 0, 0, 0
    for part, distribution in zip(MIXED.parts, head.parts, strict=True):
        alone = ActionHead(part.spec)
        alone.parts[0].load_state_dict(distribution.state_dict())
        at, out = slice(start, start + part.size), slice(read, read + alone.outputs)
        entry = action[:, at].to(getattr(torch, part.spec.row_dtype))
        logp = logp + alone.logp(output[:, out], entry)
        entropy = entropy + alone.entropy(output[:, out], entry)
        torch.testing.assert_close(
            head.mode(output)[:, at],
            alone.mode(output[:, out]).reshape(COUNT, -1).float(),
        )
        start, read = at.stop, out.stop
    assert (start, read) == (11, head.outputs)
    torch.testing.assert_close(head.logp(output, action), logp)
    torch.testing.assert_close(head.entropy(output, action), entropy)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", list(ALL))
def test_a_chunks_log_probs_are_those_of_its_actions_one_by_one(name, squash):
    spec, chunk = ALL[name], 3
    head = ActionHead(chunked(spec, chunk), chunk=chunk, squash=squash)
    output = outputs_of(head)
    action = head.sample(output, rng())
    assert action.shape == (COUNT, chunk, *spec.shape)
    one = ActionHead(spec, squash=squash)
    logp, entropy = head.logp_parts(output, action), head.entropy_parts(output, action)
    assert logp.shape == entropy.shape == (COUNT, chunk)
    for c, out in enumerate(output.chunk(chunk, dim=1)):
        torch.testing.assert_close(logp[:, c], one.logp(out, action[:, c]))
        torch.testing.assert_close(entropy[:, c], one.entropy(out, action[:, c]))
        torch.testing.assert_close(head.mode(output)[:, c], one.mode(out))


def test_actions_that_were_never_executed_count_for_nothing_in_values_and_gradients():
    head = head_of(chunked(BOX, 3), chunk=3)
    output = outputs_of(head, 3).requires_grad_()
    action = head.sample(output.detach(), rng())
    executed = torch.tensor([1, 2, 3])
    counts = torch.arange(3) < executed[:, None]
    expected = (head.logp_parts(output, action) * counts).sum(dim=1)
    entropy = (head.entropy_parts(output, action) * counts).sum(dim=1)
    action[~counts] = 1e6
    logp = head.logp(output, action, executed)
    torch.testing.assert_close(logp, expected)
    torch.testing.assert_close(head.entropy(output, action, executed), entropy)
    logp.sum().backward()
    per_action = output.grad.reshape(3, 3, 3).abs().sum(dim=2)
    assert torch.equal(per_action > 0, counts)
    parts = head.logp_parts(output, action)
    assert torch.equal(executed_sum(parts, None), parts.sum(dim=1))


@pytest.mark.parametrize("name", list(ALL))
def test_samples_repeat_with_the_generator_and_have_the_distributions_frequencies(name):
    head = head_of(ALL[name])
    one = outputs_of(head, 1)
    rows = one.expand(30_000, -1)
    action = head.sample(rows, rng(3))
    assert torch.equal(action, head.sample(rows, rng(3)))
    # The entropy is the mean of -log p over samples of the same distribution.
    surprise = -head.logp(rows, action).mean()
    torch.testing.assert_close(surprise, head.entropy(one, action[:1])[0], atol=0.03, rtol=0)


@pytest.mark.parametrize("name", list(ALL))
def test_no_action_is_more_likely_than_the_mode(name):
    head = head_of(ALL[name])
    output = outputs_of(head)
    mode = head.mode(output)
    best = head.logp(output, mode)
    for seed in range(20):
        assert (head.logp(output, head.sample(output, rng(seed))) <= best + 1e-6).all()


@pytest.mark.parametrize("name", list(ALL))
def test_gradients_reach_every_output_and_are_finite(name):
    head = head_of(ALL[name])
    output = outputs_of(head).requires_grad_()
    action = head.sample(output.detach(), rng())
    logp, entropy = head.logp(output, action), head.entropy(output, action)
    (logp.sum() + entropy.sum()).backward()
    assert torch.isfinite(output.grad).all()
    assert (output.grad != 0).any(dim=0).all()
