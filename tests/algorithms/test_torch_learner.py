"""The generic learner: against plain autograd, its guards, its state, losses of the user's own."""

from __future__ import annotations

import numpy as np
import pytest
import structlog
import torch

from rlinf_async.algorithms import Adam, PPOLoss, gae, linear, vtrace
from rlinf_async.algorithms.advantages import normalized
from rlinf_async.algorithms.batching import minibatches, permutation
from rlinf_async.algorithms.learner import NON_FINITE_LIMIT, make_learner, preparation
from rlinf_async.algorithms.losses_torch import ppo_loss
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.torch_learner import ModuleEvaluator, TorchLearner, observation_of
from rlinf_async.errors import BadInput, EngineError
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic
from tests.fixtures.batches import random_batch, vector_spaces
from tests.fixtures.image_policy import IMAGES, ImagePolicy

SPACES = vector_spaces(widths={"state": 3, "goal": 2})


def policy_of(spaces=SPACES, **arguments):
    kind = GaussianActorCritic if spaces.action.kind == "continuous" else CategoricalActorCritic
    return kind(spaces, hidden=(8, 8), **arguments)


def torch_learner(policy=None, **changes):
    policy = policy or policy_of()
    settings = {
        "loss": PPOLoss(entropy_weight=0.01),
        "optimizer": Adam(learning_rate=1e-2),
        "advantages": gae(0.9, 0.8),
        "epochs": 2,
        "minibatch": 6,
        "normalize": True,
        "iterations": 4,
        **changes,
    }
    learner = TorchLearner(policy, **settings)
    if hasattr(policy, "initial_parameters"):
        learner.load(policy.initial_parameters(np.random.default_rng(0)))
    return learner


def acted_batch(learner, spaces=SPACES, *, horizon=6, slots=4, seed=0, version=0):
    """A batch whose log-probs and values are the learner's own, as at lag 0."""
    batch = random_batch(spaces, horizon=horizon, slots=slots, seed=seed, version=version)
    entries = {s.name: _rows(batch[f"obs/{s.name}"]) for s in spaces.observation}
    clipped = {name: np.clip(rows, -10, 10) for name, rows in entries.items()}
    evaluator = ModuleEvaluator(learner.module, rows=64)
    batch["value"] = evaluator.value(clipped).reshape(horizon + 1, slots)
    before = {name: rows[: horizon * slots] for name, rows in clipped.items()}
    batch["logp"] = evaluator.logp(before, _rows(batch["action"])).reshape(horizon, slots)
    return batch


def _rows(field):
    return field.reshape(-1, *field.shape[2:])


def update(learner, batch, spaces=SPACES, **changes):
    arguments = {
        "statistics": Statistics.initial(spaces),
        "scales": {},
        "version": 0,
        "seed": 7,
        **changes,
    }
    return learner.update(batch, **arguments)


def plain_update(policy, parameters, batch, spaces, *, loss, optimizer, epochs, minibatch):
    """The same update with an ordinary module, optimizer and gradient clipping."""
    module = policy.to_module()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters.copy()), module.parameters())
    adam = torch.optim.Adam(
        module.parameters(), lr=optimizer.rate(0.0), betas=optimizer.betas, eps=optimizer.eps
    )
    prepared = preparation(loss, gae(0.9, 0.8), normalized=True, joined=False)(
        batch, statistics=Statistics.initial(spaces), scales={}, version=0, evaluator=None
    )
    advantage = normalized(prepared.advantage)
    for epoch in range(epochs):
        order = permutation(len(prepared), seed=7, version=0, epoch=epoch)
        for at in minibatches(len(prepared), minibatch):
            index = order[at]

            def pick(rows, index=index):
                return torch.from_numpy(rows[index])

            observation = {name: pick(rows) for name, rows in prepared.observations.items()}
            logp, entropy, value = module.evaluate(observation, pick(prepared.action))
            total, _ = ppo_loss(
                loss,
                logp=logp,
                entropy=entropy,
                value=value,
                logp_base=pick(prepared.logp_base),
                value_old=pick(prepared.value_old),
                advantage=pick(advantage),
                returns=pick(prepared.returns),
            )
            adam.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), optimizer.max_grad_norm)
            adam.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize(
    "loss",
    [
        PPOLoss(entropy_weight=0.01),
        PPOLoss(clip=0.05, clip_high=0.1, dual_clip=2.0, value_clip=0.1, log_ratio_clamp=1.0),
    ],
)
@pytest.mark.parametrize("discrete", [False, True], ids=["gaussian", "categorical"])
def test_update_equals_plain_torch_step_for_step(loss, discrete):
    spaces = vector_spaces(widths={"state": 3, "goal": 2}, actions=3, discrete=discrete)
    policy = policy_of(spaces)
    optimizer = Adam(learning_rate=1e-2, max_grad_norm=0.3)
    learner = torch_learner(policy, loss=loss, optimizer=optimizer)
    start = learner.parameters.copy()
    batch = acted_batch(learner, spaces)
    update(learner, batch, spaces)
    expected = plain_update(
        policy, start, batch, spaces, loss=loss, optimizer=optimizer, epochs=2, minibatch=6
    )
    assert np.abs(learner.parameters - start).max() > 1e-3
    np.testing.assert_allclose(learner.parameters, expected, rtol=1e-4, atol=2e-6)


def test_the_same_update_gives_the_same_bits():
    results = []
    for _ in range(2):
        learner = torch_learner()
        update(learner, acted_batch(learner))
        results.append(learner.parameters.copy())
    np.testing.assert_array_equal(*results)


def test_shards_of_a_gradient_add_up_to_the_whole():
    whole, sharded = torch_learner(), torch_learner(shards=4)
    batch = acted_batch(whole)
    metrics, sharded_metrics = update(whole, batch), update(sharded, batch)
    np.testing.assert_allclose(sharded.parameters, whole.parameters, rtol=1e-4, atol=1e-5)
    assert metrics.keys() == sharded_metrics.keys()
    for name, value in metrics.items():
        assert sharded_metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_metrics_are_floats_under_documented_names():
    learner = torch_learner(optimizer=Adam(learning_rate=linear(1e-2, 0.0)))
    metrics = update(learner, acted_batch(learner, version=1), version=1)
    assert set(metrics) == {
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "grad_norm",
        "learning_rate",
        "explained_variance",
        "skipped_steps",
        "first_log_ratio_max",
    }
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["learning_rate"] == pytest.approx(0.75e-2)
    assert metrics["skipped_steps"] == 0.0


def test_the_first_log_ratio_of_a_fresh_batch_is_zero():
    learner = torch_learner()
    with structlog.testing.capture_logs() as logs:
        metrics = update(learner, acted_batch(learner))
    assert metrics["first_log_ratio_max"] <= 1e-5
    assert logs == []


def test_wrong_stored_log_probs_are_warned_of():
    learner = torch_learner()
    batch = acted_batch(learner)
    batch["logp"] += 0.5
    with structlog.testing.capture_logs() as logs:
        metrics = update(learner, batch)
    assert metrics["first_log_ratio_max"] == pytest.approx(0.5, rel=1e-3)
    assert [entry["event"] for entry in logs] == ["first_log_ratio_was_not_zero"]


def test_lagged_batches_have_no_first_log_ratio():
    learner = torch_learner()
    batch = acted_batch(learner, version=0)
    assert "first_log_ratio_max" not in update(learner, batch, version=1)


@pytest.mark.parametrize("correction", ["decoupled", "vtrace"])
def test_corrections_of_a_lagged_batch_start_from_ratio_one(correction):
    changes = (
        {"loss": PPOLoss(correction="decoupled")}
        if correction == "decoupled"
        else {"advantages": vtrace(0.9, 0.8)}
    )
    learner = torch_learner(**changes, epochs=1, minibatch=100)
    batch = acted_batch(learner, version=0)
    batch["logp"] -= 0.3
    metrics = update(learner, batch, version=1)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_step_that_is_not_finite_is_skipped_and_counted():
    learner = torch_learner(minibatch=24, epochs=3)
    batch = acted_batch(learner)
    batch["logp"][2, 1] = np.nan
    before = learner.parameters.copy()
    with structlog.testing.capture_logs():
        metrics = update(learner, batch)
    assert metrics["skipped_steps"] == 3.0
    np.testing.assert_array_equal(learner.parameters, before)
    assert learner.state()["adam/steps"][0] == 0


def test_ten_steps_in_a_row_that_are_not_finite_end_the_run():
    learner = torch_learner(minibatch=24, epochs=NON_FINITE_LIMIT)
    batch = acted_batch(learner)
    batch["reward"][0, 0] = np.inf
    with structlog.testing.capture_logs(), pytest.raises(EngineError, match="10 optimizer steps"):
        update(learner, batch)


def test_restored_state_continues_bit_for_bit():
    learner = torch_learner()
    batch = acted_batch(learner)
    update(learner, batch)
    other = torch_learner()
    other.load(learner.parameters)
    other.restore(learner.state())
    update(learner, batch, version=1)
    update(other, batch, version=1)
    np.testing.assert_array_equal(other.parameters, learner.parameters)


def test_parameters_of_another_size_are_refused():
    with pytest.raises(BadInput, match="another shape"):
        torch_learner().load(np.zeros(3, dtype=np.float32))


@pytest.mark.parametrize("slots", [1, 2])
def test_mini_batches_of_one_entry_train_without_nan(slots):
    loss = PPOLoss(normalize_advantages="minibatch")
    learner = torch_learner(loss=loss, minibatch=1, epochs=1)
    metrics = update(learner, acted_batch(learner, horizon=1, slots=slots))
    assert np.isfinite(learner.parameters).all()
    assert metrics["policy_loss"] == 0.0


def test_equal_rewards_and_values_leave_the_actor_alone():
    learner = torch_learner(loss=PPOLoss(), advantages=gae(0.0, 0.0), epochs=1, minibatch=100)
    batch = acted_batch(learner)
    batch["reward"][...] = 0.1
    batch["value"][...] = 0.0
    before = {n: p.detach().clone() for n, p in learner.module.named_parameters()}
    update(learner, batch)
    for name, parameter in learner.module.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == ("critic" in name), name


def image_policy():
    torch.manual_seed(0)
    return ImagePolicy(IMAGES)


def advantage_weighted(module, minibatch):
    """A loss of the user's own."""
    logp, entropy, value = module.evaluate(observation_of(minibatch), minibatch["action"])
    error = (value - minibatch["return"]).square().mean()
    loss = error - (logp * minibatch["advantage_normalized"].clamp(min=0)).mean()
    return loss, {"value_error": error, "entropy": entropy.mean()}


def wrong_loss(module, minibatch):
    return minibatch["advantage"], {}


@pytest.mark.parametrize("loss", [PPOLoss(), advantage_weighted], ids=["ppo", "own"])
def test_a_users_own_policy_and_loss_learn(loss):
    learner = torch_learner(image_policy(), loss=loss, epochs=1)
    batch = random_batch(IMAGES, horizon=6, slots=4)
    with structlog.testing.capture_logs():
        errors = [update(learner, batch, IMAGES) for _ in range(20)]
    name = "value_loss" if isinstance(loss, PPOLoss) else "value_error"
    assert errors[-1][name] < errors[0][name]


def test_shards_of_a_users_own_loss_are_weighed_by_their_size():
    whole = torch_learner(loss=advantage_weighted, minibatch=24)
    sharded = torch_learner(loss=advantage_weighted, minibatch=24, shards=5)
    batch = acted_batch(whole)
    update(whole, batch)
    update(sharded, batch)
    np.testing.assert_allclose(sharded.parameters, whole.parameters, rtol=1e-4, atol=1e-5)


def test_a_loss_that_returns_no_scalar_is_named():
    learner = torch_learner(loss=wrong_loss)
    with pytest.raises(BadInput, match="wrong_loss: returned no loss"):
        update(learner, acted_batch(learner))


def test_frozen_parameters_stay_as_they_are():
    policy = image_policy()
    policy.trunk[1].weight.requires_grad_(False)
    before = policy.trunk[1].weight.detach().clone()
    learner = torch_learner(policy)
    with structlog.testing.capture_logs():
        update(learner, random_batch(IMAGES, horizon=4, slots=4), IMAGES)
    assert torch.equal(policy.trunk[1].weight, before)


def test_the_learner_is_chosen_by_policy_and_loss_and_says_why():
    settings = {
        "optimizer": Adam(learning_rate=1e-3),
        "advantages": gae(0.9, 0.8),
        "epochs": 1,
        "minibatch": 8,
        "normalize": True,
        "iterations": 2,
    }
    policy = policy_of()
    fused = make_learner(policy, SPACES, loss=PPOLoss(), **settings)
    assert fused.name == "fused"
    assert "analytic" in fused.reason
    own = make_learner(policy, SPACES, loss=advantage_weighted, **settings)
    assert (own.name, own.reason) == ("torch", "advantage_weighted is no built-in loss")
    module = make_learner(image_policy(), IMAGES, loss=PPOLoss(), **settings)
    assert (module.name, module.reason) == ("torch", "ImagePolicy is no built-in policy")


@pytest.mark.parametrize("discrete", [False, True], ids=["gaussian", "categorical"])
@pytest.mark.parametrize(
    ("loss", "advantages", "acted"),
    [
        (PPOLoss(entropy_weight=0.01), gae(0.9, 0.8), 1),
        (PPOLoss(value_clip=0.1, normalize_advantages="minibatch"), gae(0.9, 0.8), 1),
        (PPOLoss(correction="decoupled", weight_cap=1.1), gae(0.9, 0.8), 0),
        (PPOLoss(), vtrace(0.9, 0.8, scale_rewards=True), 0),
    ],
    ids=["plain", "minibatch", "decoupled", "vtrace"],
)
def test_fused_and_torch_learners_agree(discrete, loss, advantages, acted):
    spaces = vector_spaces(widths={"state": 3, "goal": 2}, actions=3, discrete=discrete)
    policy = policy_of(spaces)
    settings = {
        "loss": loss,
        "optimizer": Adam(learning_rate=3e-3),
        "advantages": advantages,
        "epochs": 2,
        "minibatch": 5,
        "normalize": True,
        "iterations": 4,
    }
    fused = make_learner(policy, spaces, max_lag=1, **settings)
    generic = torch_learner(policy, **settings)
    fused.load(generic.parameters)
    batch = acted_batch(generic, spaces, version=acted)
    if not acted:
        batch["logp"] -= 0.05
    words = {"version": 1, "scales": {0: 2.0, 1: 2.0}}
    metrics, expected = (
        update(fused, batch, spaces, **words),
        update(generic, batch, spaces, **words),
    )
    np.testing.assert_allclose(fused.parameters, generic.parameters, rtol=1e-3, atol=1e-5)
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
