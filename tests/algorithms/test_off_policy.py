"""Losses, targets and whole updates of the off-policy algorithms against slow references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms import Adam
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.off_policy import IQL, SAC, TD3, CrossQ, losses
from rlinf_async.algorithms.off_policy.configuring import check_off_policy
from rlinf_async.algorithms.off_policy.learner import OffPolicyLearner
from rlinf_async.algorithms.off_policy.lowest import lowest
from rlinf_async.algorithms.off_policy.networks import (
    BatchNormCritics,
    Flat,
    Trained,
    critic_shapes,
    critics,
    initial_values,
)
from rlinf_async.algorithms.off_policy.sampling import Memory, PrioritisedSampler, UniformSampler
from rlinf_async.algorithms.off_policy.soft import Temperature
from rlinf_async.algorithms.off_policy.store import Store
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import Deterministic, GaussianActorCritic, SquashedGaussian
from rlinf_async.models.squashed import views_of

torch.set_num_threads(1)
OPTIMIZER = Adam(learning_rate=3e-3, max_grad_norm=None, eps=1e-8)


def spaces_of(low: float = -2.0, high: float = 2.0) -> Spaces:
    action = ActionSpec(
        kind="continuous", shape=(2,), dtype="float32", low=(low,) * 2, high=(high,) * 2
    )
    return Spaces(observation=(ArraySpec(name="s", shape=(3,), dtype="float32"),), action=action)


def tensors(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), samples=st.integers(1, 5), size=st.integers(1, 4))
def test_log_probs_are_those_of_torchs_tanh_of_a_normal(seed, samples, size):
    output, noise = tensors(seed, samples, 2 * size), tensors(seed + 1, samples, size)
    action, logp = losses.squashed_sample(output, noise)
    mean, log_std = output.double().chunk(2, dim=1)
    plain = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()),
        [torch.distributions.transforms.TanhTransform(cache_size=1)],
    )
    u = mean + log_std.clamp(-20, 2).exp() * noise
    expected = plain.base_dist.log_prob(u) - plain.transforms[0].log_abs_det_jacobian(
        u, torch.tanh(u)
    )
    torch.testing.assert_close(logp, expected.sum(1).float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(action, torch.tanh(u).float(), rtol=1e-5, atol=1e-6)
    inside = action.clamp(-0.99, 0.99)
    given = plain.log_prob(inside.double()).sum(1).float()
    torch.testing.assert_close(losses.squashed_logp(output, inside), given, rtol=1e-3, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), samples=st.integers(1, 6), count=st.integers(1, 4))
def test_targets_and_losses_are_those_of_plain_loops(seed, samples, count):
    q, ahead = tensors(seed, count, samples), tensors(seed + 1, count, samples)
    reward, logp, alpha = tensors(seed + 2, samples), tensors(seed + 3, samples), 0.3
    discount = tensors(seed + 4, samples).sigmoid()
    weight = tensors(seed + 5, samples).sigmoid()
    target = losses.soft_target(reward, discount, ahead, logp, alpha)
    loss, actor, pooled, square, share = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(samples):
        y = reward[i] + discount[i] * (min(ahead[:, i]) - alpha * logp[i])
        assert float(target[i]) == pytest.approx(float(y), rel=1e-5, abs=1e-5)
        for e in range(count):
            loss += 0.5 * float(weight[i]) * float(q[e, i] - y) ** 2 / samples
        actor += float(alpha * logp[i] - min(q[:, i])) / samples
        pooled += float(alpha * logp[i] - sum(q[:, i]) / count) / samples
        square += (0.2 if q[0, i] < 0 else 0.8) * float(q[0, i]) ** 2 / samples
        share = losses.advantage_weights(q[0, i], beta=3.0, cap=5.0)
        assert float(share) == pytest.approx(min(math.exp(3.0 * float(q[0, i])), 5.0), rel=1e-4)
    near = {"rel": 1e-4, "abs": 1e-5}
    assert float(losses.critic_loss(q, target, weight)) == pytest.approx(loss, **near)
    assert float(losses.actor_loss(logp, q, alpha, mean=False)) == pytest.approx(actor, **near)
    assert float(losses.actor_loss(logp, q, alpha, mean=True)) == pytest.approx(pooled, **near)
    assert float(losses.expectile_loss(q[0], 0.8)) == pytest.approx(square, **near)
    deviation, clip = torch.tensor([0.5, 1.0]), torch.tensor([0.1, 0.3])
    action, noise = tensors(seed, samples, 2).tanh(), tensors(seed + 1, samples, 2)
    moved = losses.smoothed_action(action, noise, deviation=deviation, clip=clip)
    for i in range(samples):
        for a in range(2):
            step = max(-float(clip[a]), min(float(clip[a]), float(noise[i, a] * deviation[a])))
            expected = max(-1.0, min(1.0, float(action[i, a]) + step))
            assert float(moved[i, a]) == pytest.approx(expected, abs=1e-6)


def test_a_hand_computed_soft_target_temperature_and_expectile():
    # R = 1, gamma^h = 0.81, min(2, 3) = 2, alpha 0.5, log pi -1: y = 1 + 0.81 (2 + 0.5) = 3.025;
    # terminated: 1. dL/dlog_alpha = -(mean log pi + H) = -(-1 - 2) = 3. Expectile 0.9 of u = -2:
    # 0.1 x 4 = 0.4.
    reward, logp = torch.tensor([1.0, 1.0]), torch.tensor([-1.0, -1.0])
    ahead = torch.tensor([[2.0, 2.0], [3.0, 3.0]])
    target = losses.soft_target(reward, torch.tensor([0.81, 0.0]), ahead, logp, 0.5)
    assert target.tolist() == pytest.approx([3.025, 1.0])
    assert losses.temperature_gradient(logp, -2.0) == pytest.approx(3.0)
    assert float(losses.expectile_loss(torch.tensor([-2.0]), 0.9)) == pytest.approx(0.4)
    # Adam's first step is the rate itself, towards less temperature where entropy is above H.
    temperature = Temperature(1.0, OPTIMIZER, target_entropy=-2.0, tuned=True)
    temperature.step(logp)
    assert temperature.log_alpha == pytest.approx(-3e-3, rel=1e-6)


@pytest.mark.parametrize("limit", [None, 0.1])
def test_the_optimizer_is_adam_written_out(limit):
    shapes = {"a": (3, 2), "b": (2,)}
    trained = Trained(
        Flat(shapes, tensors(0, 8)), Adam(learning_rate=0.1, max_grad_norm=limit, eps=1e-8)
    )
    plain, mean, square = tensors(0, 8).double().numpy(), np.zeros(8), np.zeros(8)
    for step in range(1, 6):
        slope = tensors(step, 8)
        parts = views_of(shapes, slope)
        assert trained.step(sum((trained.flat.live[n] * parts[n]).sum() for n in shapes))
        gradient = slope.double().numpy()
        if limit is not None:
            gradient *= limit / np.linalg.norm(gradient)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        root = np.sqrt(square / (1 - 0.999**step)) + 1e-8
        plain -= 0.1 * mean / (1 - 0.9**step) / root
        np.testing.assert_allclose(trained.flat.values.numpy(), plain, rtol=1e-4, atol=1e-5)
    before = trained.flat.values.clone()
    assert not trained.step(trained.flat.live["a"].sum() * float("nan"))
    assert torch.equal(before, trained.flat.values)


@pytest.mark.parametrize("norm", [False, True])
def test_an_ensemble_is_so_many_single_nets(norm):
    shapes = critic_shapes(5, (7, 6), 3, norm=norm)
    values = initial_values(shapes, np.random.default_rng(0))
    parameters, x = views_of(shapes, values), tensors(1, 4, 5)
    together = critics(parameters, x, 2, norm=norm)
    for e in range(3):
        y = x
        for i in range(2):
            y = y @ parameters[f"hidden.{i}.weight"][e] + parameters[f"hidden.{i}.bias"][e]
            if norm:
                y = torch.nn.functional.layer_norm(y, y.shape[-1:])
            y = torch.relu(y)
        y = y @ parameters["output.weight"][e] + parameters["output.bias"][e]
        torch.testing.assert_close(together[e], y[:, 0])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_lowest_value_has_the_gradient_of_a_minimum_over_all(count):
    shapes = critic_shapes(5, (7, 6), count, norm=False)
    parameters = views_of(shapes, initial_values(shapes, np.random.default_rng(0)))
    x, slope, gradients = tensors(1, 40, 5), tensors(2, 40), []
    for value in (
        lambda each: lowest(each, parameters, 2),
        lambda each: critics(parameters, each, 2, norm=False).amin(0),
    ):
        leaf = x.clone().requires_grad_()
        values = value(leaf)
        values.backward(slope)
        gradients += [values.detach(), leaf.grad]
    torch.testing.assert_close(gradients[0], gradients[2])
    torch.testing.assert_close(gradients[1], gradients[3])


def test_batch_norm_is_torchs_and_evaluation_uses_what_ran_along():
    shapes = critic_shapes(4, (6,), 2, norm=True, norm_inputs=True)
    parameters = views_of(shapes, initial_values(shapes, np.random.default_rng(0)))
    own = BatchNormCritics(4, (6,), 2, momentum=0.1)
    layers = [
        [torch.nn.BatchNorm1d(units, momentum=0.1, eps=1e-5) for units in (4, 6)] for _ in range(2)
    ]
    for seed in range(3):
        for training in (True, False):
            x = tensors(seed, 8, 4) * 3 + 1
            found = own(parameters, x, training=training)
            for e in range(2):
                for layer in layers[e]:
                    layer.train(training)
                y = layers[e][0](x) @ parameters["hidden.0.weight"][e]
                y = layers[e][1](torch.relu(y + parameters["hidden.0.bias"][e]))
                y = y @ parameters["output.weight"][e] + parameters["output.bias"][e]
                # torch keeps the unbiased variance; ours is the batch's own, as CrossQ's is.
                limit = 0.0 if training else 0.1
                torch.testing.assert_close(found[e], y[:, 0], rtol=1e-4 + limit, atol=1e-4 + limit)


def memory_of(*, prioritised: bool = False, seed: int = 0, low: float = -2.0) -> Memory:
    """A replay of a one-step task: the reward is -(action - 0.5)^2 of the scaled action."""
    rng = np.random.default_rng(seed)
    store = Store.private(spaces_of(low), slots=4, length=400)
    memory = Memory(
        PrioritisedSampler(store, alpha=0.6, beta=0.4) if prioritised else UniformSampler(store)
    )
    shape = (100, 4)
    action = rng.uniform(-1, 1, (*shape, 2)).astype(np.float32)
    memory.insert(
        {
            "obs/s": rng.normal(size=(101, 4, 3)).astype(np.float32),
            "final/s": rng.normal(size=(*shape, 3)).astype(np.float32),
            "action": action,
            "reward": -np.square(action - 0.5).sum(-1),
            "terminated": np.ones(shape, bool),
            "truncated": np.zeros(shape, bool),
        }
    )
    return memory


def learner_of(algorithm, memory: Memory, **more) -> OffPolicyLearner:
    kind = Deterministic if isinstance(algorithm, TD3) else SquashedGaussian
    policy = kind(spaces_of(), hidden=(16, 16))
    arguments = {"updates": 5, "minibatch": 32, "warmup": 0, "n_step": 1, **more}
    learner = OffPolicyLearner(
        policy,
        algorithm=algorithm,
        memory=memory,
        optimizer=OPTIMIZER,
        normalize=False,
        iterations=100,
        seed=3,
        **arguments,
    )
    learner.load(policy.initial_parameters(np.random.default_rng(0)))
    return learner


def one_more() -> dict[str, np.ndarray]:
    """A batch of one step of every slot."""
    return {
        "obs/s": np.zeros((2, 4, 3), np.float32),
        "final/s": np.zeros((1, 4, 3), np.float32),
        "action": np.zeros((1, 4, 2), np.float32),
        "reward": np.full((1, 4), -0.5),
        "terminated": np.ones((1, 4), bool),
        "truncated": np.zeros((1, 4), bool),
    }


def trained(learner: OffPolicyLearner, first: int, last: int) -> dict[str, float]:
    statistics, metrics = Statistics.initial(spaces_of()), {}
    for version in range(first, last):
        metrics = learner.update(
            one_more(), statistics=statistics, scales={}, version=version, seed=1
        )
    return metrics


SMALL = {"hidden": (16, 16)}
ALGORITHMS = [
    SAC(**SMALL),
    SAC(**SMALL, critics=4, subset=2, layer_norm=True),
    CrossQ(**SMALL, actor_every=1),
    TD3(**SMALL),
    IQL(**SMALL),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{type(a).__name__}-{a.critics}")
def test_every_algorithm_learns_the_best_action_of_a_one_step_task(algorithm):
    # Early critics push TD3's actor to the bounds, where a tanh is slow to come back from.
    updates = 400 if isinstance(algorithm, TD3) else 50
    learner = learner_of(algorithm, memory_of(), updates=updates)
    metrics = trained(learner, 0, 6)
    assert metrics["skipped_steps"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
    policy = learner_of(algorithm, memory_of())
    chooser = (Deterministic if isinstance(algorithm, TD3) else SquashedGaussian)(
        spaces_of(), hidden=(16, 16)
    ).to_chooser(learner.parameters)
    rows = {"s": tensors(9, 50, 3).numpy()}
    action = np.tanh(chooser(rows, True, np.random.default_rng(0)))
    before = -np.square(0.0 - 0.5) * 2
    assert -np.square(action - 0.5).sum(1).mean() > before / 3
    assert policy.parameters.shape == learner.parameters.shape
    assert learner.parameters[-1] == 0.0, "the actor acts itself once updates were made"


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{type(a).__name__}-{a.critics}")
def test_a_restored_learner_goes_on_bit_by_bit(algorithm, prioritised):
    one = learner_of(algorithm, memory_of(prioritised=prioritised))
    trained(one, 0, 2)
    two = learner_of(algorithm, memory_of(prioritised=prioritised, seed=7))
    two.restore(one.state())
    two.load(one.parameters.copy())
    two.memory.store.arrays.update({n: a.copy() for n, a in one.memory.store.arrays.items()})
    store = Store(two.memory.store.arrays)
    sampler = (
        PrioritisedSampler(store, alpha=0.6, beta=0.4) if prioritised else UniformSampler(store)
    )
    sampler.restore({n: a.copy() for n, a in one.memory.sampler.state().items()})
    two.memory = Memory(sampler)
    trained(one, 2, 4)
    trained(two, 2, 4)
    assert one.parameters.tobytes() == two.parameters.tobytes()
    states = one.state(), two.state()
    assert states[0].keys() == states[1].keys()
    assert all(states[0][name].tobytes() == states[1][name].tobytes() for name in states[0])


def test_nothing_is_updated_before_the_warmup_and_actions_are_uniform_until_then():
    store = Store.private(spaces_of(), slots=4, length=40)
    learner = learner_of(SAC(**SMALL), Memory(UniformSampler(store)), warmup=10)
    before = learner.parameters.copy()
    assert [trained(learner, v, v + 1)["updates"] for v in range(2)] == [0.0, 0.0]
    assert learner.parameters.tobytes() == before.tobytes()
    assert before[-1] == 1.0
    assert trained(learner, 2, 3)["updates"] == 5.0
    actor = SquashedGaussian(spaces_of(), hidden=(16, 16)).to_actor(4, normalize=False)
    for parameters, uniform in ((before, True), (learner.parameters, False)):
        actor.load({"parameters": parameters})
        actor.begin(np.random.default_rng(0), 500)
        seen = {"s": np.zeros((4, 3), np.float32)}
        action = np.tanh([actor.act(t, seen) for t in range(500)])
        row = {name: np.full((500, 4), np.nan) for name in ("logp", "value", "final_value")}
        actor.finish(row, 0, 500)
        # Uniform in [-1, 1]^2 has the density 1/4 everywhere.
        assert (row["logp"] == np.float32(-2 * math.log(2))).all() == uniform
        assert np.isfinite(row["logp"]).all()
        if uniform:
            counts = np.histogram(action, bins=10, range=(-1, 1))[0]
            assert np.abs(counts - 400).max() < 6 * math.sqrt(400)


def test_not_finite_rewards_are_skipped_counted_and_end_the_run():
    memory = memory_of()
    memory.store.arrays["reward"][...] = np.nan
    learner = learner_of(SAC(**SMALL), memory, updates=4)
    before = learner.parameters.copy()
    metrics = trained(learner, 0, 1)
    assert metrics["skipped_steps"] == 4
    assert learner.parameters[:-1].tobytes() == before[:-1].tobytes()
    with pytest.raises(Exception, match="not finite"):
        trained(learner, 1, 4)


def test_noise_of_td3_is_in_action_units():
    # Bounds +-2: a deviation of 0.2 in action units is 0.1 of the action scaled to [-1, 1].
    policy = Deterministic(spaces_of(), hidden=(4,), exploration=0.2)
    actor = policy.to_actor(4, normalize=False)
    parameters = np.zeros_like(policy.initial_parameters(np.random.default_rng(0)))
    actor.load({"parameters": parameters})
    actor.begin(np.random.default_rng(0), 500)
    seen = {"s": np.zeros((4, 3), np.float32)}
    action = 2.0 * np.tanh([actor.act(t, seen) for t in range(500)])
    assert action.std() == pytest.approx(0.2, rel=0.05)


def test_what_does_not_fit_is_refused():
    gaussian, plain = SquashedGaussian(spaces_of()), GaussianActorCritic(spaces_of())
    with pytest.raises(BadInput, match="Deterministic"):
        check_off_policy(gaussian, TD3(), OPTIMIZER)
    with pytest.raises(BadInput, match="SquashedGaussian"):
        check_off_policy(plain, SAC(), OPTIMIZER)
    with pytest.raises(BadInput, match="no finite bounds"):
        SquashedGaussian(spaces_of(high=math.inf))
    with pytest.raises(BadInput, match="subset"):
        SAC(critics=2, subset=3)
    with pytest.raises(BadInput, match="gamma"):
        CrossQ(gamma=1.5)
