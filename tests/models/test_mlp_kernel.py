"""The numpy nets against torch in float64: outputs and the gradient of every parameter."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import GaussianActorCritic
from rlinf_async.models.mlp_kernel import ACTOR, CRITIC, TrainPass, _cuts


def policy_of(inputs, outputs, hidden, activation="tanh"):
    action = ActionSpec(
        kind="continuous",
        shape=(outputs,),
        dtype="float32",
        low=(-1.0,) * outputs,
        high=(1.0,) * outputs,
    )
    spec = ArraySpec(name="state", shape=(inputs,), dtype="float32")
    spaces = Spaces(observation=(spec,), action=action)
    return GaussianActorCritic(spaces, hidden=hidden, activation=activation)


def torch_outputs(policy, flat, x):
    """Action means [N, A] and values [N, 1], written as plainly as the layout's description."""
    parts, start = {}, 0
    for name, shape in policy.parameter_shapes().items():
        size = math.prod(shape)
        parts[name] = flat[start : start + size].reshape(shape)
        start += size
    activate = torch.tanh if policy.activation == "tanh" else torch.relu

    def net(index, head):
        h = x
        for layer in range(len(policy.hidden)):
            w = parts[f"hidden.{layer}"][index]
            h = activate(h @ w[:-1] + w[-1])
        return h @ parts[head][:-1] + parts[head][-1]

    return net(0, "actor"), net(1, "critic")


def check(policy, rows, seed=0):
    rng = np.random.default_rng(seed)
    pair = policy.to_kernel()
    noise = 0.1 * rng.standard_normal(pair.parameters.size)
    pair.parameters[:] = policy.initial_parameters(rng) + noise
    nets = TrainPass(pair, rows)
    x = rng.standard_normal((rows, policy.observation_size)).astype(np.float32)
    d_output = rng.standard_normal((policy.output_size, rows)).astype(np.float32)
    d_value = rng.standard_normal(rows).astype(np.float32)
    for _ in range(2):  # the second time over buffers that are not fresh
        nets.x[:, :-1] = x
        nets.forward()
        nets.d_output[:], nets.d_value[:] = d_output, d_value
        nets.backward()
    flat = torch.tensor(pair.parameters, dtype=torch.float64, requires_grad=True)
    mean, value = torch_outputs(policy, flat, torch.tensor(x, dtype=torch.float64))
    np.testing.assert_allclose(nets.output.T, mean.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nets.value, value[:, 0].detach(), rtol=1e-4, atol=1e-5)
    (
        (mean.T * torch.tensor(d_output)).sum() + (value[:, 0] * torch.tensor(d_value)).sum()
    ).backward()
    size = flat.numel() - policy.output_size  # the kernel leaves log_std to the head
    expected = flat.grad[:size].numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(pair.gradient[:size], expected, atol=2e-5 * scale)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70),
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 17), min_size=1, max_size=3),
    activation=st.sampled_from(["tanh", "relu"]),
)
def test_gradient_equals_autograd(rows, inputs, outputs, hidden, activation):
    check(policy_of(inputs, outputs, tuple(hidden), activation), rows)


@pytest.mark.parametrize(("rows", "hidden", "cuts"), [(256, 64, 2), (768, 64, 4), (2048, 32, 4)])
def test_gradient_equals_autograd_where_products_are_cut(rows, hidden, cuts):
    assert _cuts(rows, hidden + 1, hidden) == cuts
    check(policy_of(17, 6, (hidden, hidden)), rows)


@pytest.mark.parametrize("rows", [1, 16, 256, 528])
def test_one_net_alone_gives_the_same_bits_as_one_net_alone_elsewhere(rows):
    policy = policy_of(17, 6, (64, 64))
    flat = policy.initial_parameters(np.random.default_rng(1))
    x = np.random.default_rng(2).standard_normal((rows, 17)).astype(np.float32)
    outputs = []
    for nets in (ACTOR, CRITIC) * 2:
        pair = policy.to_kernel()
        pair.parameters[:] = flat
        calls = pair.open(rows, nets)
        calls.x[:, :-1] = x
        calls.forward()
        outputs.append((calls.output if nets == ACTOR else calls.value).copy())
    np.testing.assert_array_equal(outputs[0], outputs[2])
    np.testing.assert_array_equal(outputs[1], outputs[3])
