"""The built-in policies in torch, the flat vector, and what a user's module must fulfil."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_async.errors import BadInput
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic
from rlinf_async.models.modules import as_module, flatten
from rlinf_async.models.policies import parameter_views
from tests.fixtures.batches import vector_spaces

WIDTHS = {"state": 3, "goal": 2}


def build(*, discrete=False, activation="tanh"):
    spaces = vector_spaces(widths=WIDTHS, actions=4, discrete=discrete)
    kind = CategoricalActorCritic if discrete else GaussianActorCritic
    policy = kind(spaces, hidden=(8, 6), activation=activation)
    module = as_module(policy)
    flat, _ = flatten(module, gradient=True)
    values = policy.initial_parameters(np.random.default_rng(0))
    # Biases and deviations other than 0, so that a mix-up shows.
    flat.copy_(torch.from_numpy(values + np.linspace(-0.1, 0.1, values.size, dtype=np.float32)))
    return policy, module, flat


def observations(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(rng.standard_normal((count, width), dtype=np.float32))
        for name, width in WIDTHS.items()
    }


def by_hand(policy, flat, observation, net):
    """One net's output from the documented layout of the flat vector."""
    views = parameter_views(policy, flat.detach().numpy())
    x = np.concatenate([observation[name].numpy() for name in WIDTHS], axis=1)
    for index in range(len(policy.hidden)):
        weight = views[f"hidden.{index}"][net]
        x = x @ weight[:-1] + weight[-1]
        x = np.tanh(x) if policy.activation == "tanh" else np.maximum(x, 0)
    head = views[("actor", "critic")[net]]
    return x @ head[:-1] + head[-1]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("discrete", [False, True])
def test_modules_read_the_documented_flat_vector(discrete, activation):
    policy, module, flat = build(discrete=discrete, activation=activation)
    observation = observations(5)
    value = module.value(observation).detach().numpy()
    np.testing.assert_allclose(value, by_hand(policy, flat, observation, 1)[:, 0], rtol=1e-4)
    output = by_hand(policy, flat, observation, 0)
    expected = output.argmax(axis=1) if discrete else output
    np.testing.assert_allclose(module.mean(observation).detach().numpy(), expected, rtol=1e-4)


def test_gaussian_log_probs_and_entropies_are_those_of_torch_distributions():
    _, module, _ = build()
    observation = observations(6)
    action = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    logp, entropy, value = module.evaluate(observation, action)
    reference = torch.distributions.Normal(module.mean(observation), module.log_std.exp())
    torch.testing.assert_close(logp, reference.log_prob(action).sum(dim=1))
    torch.testing.assert_close(entropy, reference.entropy().sum(dim=1))
    assert logp.shape == entropy.shape == value.shape == (6,)


def test_categorical_log_probs_and_entropies_are_those_of_torch_distributions():
    policy, module, flat = build(discrete=True)
    observation = observations(6)
    action = torch.tensor([0, 1, 2, 3, 0, 1])
    logp, entropy, _ = module.evaluate(observation, action)
    logits = torch.from_numpy(by_hand(policy, flat, observation, 0))
    reference = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(logp, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


@pytest.mark.parametrize("discrete", [False, True])
def test_acting_gives_the_log_probs_and_values_that_evaluation_gives(discrete):
    _, module, _ = build(discrete=discrete)
    observation = observations(7)
    action, logp, value = module.act(observation, np.random.default_rng(0))
    again, _, value_again = module.evaluate(observation, action)
    torch.testing.assert_close(logp, again)
    torch.testing.assert_close(value, value_again)
    same, _, _ = module.act(observation, np.random.default_rng(0))
    assert torch.equal(same, action)


def test_gaussian_samples_have_the_policys_mean_and_deviation():
    _, module, _ = build()
    one = {name: rows[:1].expand(20_000, -1) for name, rows in observations(1).items()}
    action, _, _ = module.act(one, np.random.default_rng(0))
    torch.testing.assert_close(action.mean(dim=0), module.mean(one)[0], atol=0.03, rtol=0)
    torch.testing.assert_close(action.std(dim=0), module.log_std.exp(), atol=0.03, rtol=0)


def test_categorical_samples_have_the_policys_frequencies():
    policy, module, flat = build(discrete=True)
    one = {name: rows[:1].expand(20_000, -1) for name, rows in observations(1).items()}
    action, _, _ = module.act(one, np.random.default_rng(0))
    shares = torch.bincount(action, minlength=4) / len(action)
    logits = torch.from_numpy(by_hand(policy, flat, observations(1), 0)[0])
    torch.testing.assert_close(shares, torch.softmax(logits, dim=0), atol=0.02, rtol=0)


def test_parameters_and_gradients_are_views_of_flat_vectors():
    policy = GaussianActorCritic(vector_spaces(), hidden=(4,))
    module = as_module(policy)
    flat, gradient = flatten(module, gradient=True)
    flat.fill_(0.5)
    assert all((p == 0.5).all() for p in module.parameters())
    module.value({"state": torch.ones(2, 3)}).sum().backward()
    joined = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    assert torch.equal(gradient, joined)
    assert gradient.abs().sum() > 0


class Minimal(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def act(self, observation, rng): ...

    def evaluate(self, observation, action): ...

    def value(self, observation): ...


def test_shared_parameters_appear_once_and_stay_shared():
    module = Minimal(nn.Linear(3, 3))
    module.twin = nn.Linear(3, 3)
    module.twin.weight = module.layer.weight
    flat, _ = flatten(module, gradient=True)
    assert flat.numel() == 9 + 3 + 3
    flat.fill_(2.0)
    assert (module.twin.weight == 2.0).all()


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (object(), "is no policy"),
        (nn.Linear(2, 2), "has no method act, evaluate, value"),
        (Minimal(nn.Linear(2, 2).double()), "expected float32"),
        (Minimal(nn.BatchNorm1d(2)), "keeps running statistics"),
    ],
)
def test_what_is_no_policy_is_refused(policy, word):
    with pytest.raises(BadInput, match=word):
        as_module(policy)
