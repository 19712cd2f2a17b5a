"""Schedules, parameter groups, averages and early stops: against plain torch and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlinf_async.algorithms import (
    Adam,
    CloningLoss,
    ParameterGroup,
    PolicyGradientLoss,
    PPOLoss,
    cosine,
    exponential,
    gae,
    linear,
    raw_returns,
    steps,
    vtrace,
    warmup,
)
from rlinf_async.algorithms.flat_adam import FlatAdam
from rlinf_async.algorithms.learner import make_learner
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.optimizers import AVERAGE, per_parameter
from rlinf_async.algorithms.reference import REFERENCE
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe, rebuild
from rlinf_async.models import GaussianActorCritic
from tests.fixtures.batches import random_batch, vector_spaces

SPACES = vector_spaces()


def learner_of(policy=None, **changes):
    policy = policy or GaussianActorCritic(SPACES, hidden=(4,))
    settings = {
        "loss": PPOLoss(),
        "optimizer": Adam(learning_rate=1e-2),
        "advantages": gae(0.9, 0.8),
        "epochs": 2,
        "minibatch": 8,
        "normalize": False,
        "iterations": 10,
        **changes,
    }
    learner = make_learner(policy, SPACES, **settings)
    learner.load(policy.initial_parameters(np.random.default_rng(0)))
    return learner


def update(learner, *, version=0, **changes):
    batch = random_batch(SPACES, horizon=8, slots=2, version=changes.pop("acted", version))
    batch |= changes
    arguments = {"statistics": Statistics.initial(SPACES), "scales": {}, "seed": 3}
    return learner.update(batch, version=version, **arguments)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (cosine(1.0, 0.0), [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.0]),
        (exponential(1.0, 0.0001), [1.0, 0.1, 0.01, 0.0001]),
        (warmup(0.5, linear(1.0, 0.0)), [0.0, 0.5, 1.0, 0.0]),
        (steps((0.0, 3.0), (0.25, 2.0), (0.9, 1.0)), [3.0, 2.0, 2.0, 1.0]),
    ],
)
def test_schedules_by_hand(schedule, expected):
    assert [schedule(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(expected)
    assert rebuild(describe(schedule, where="test"), where="test") == schedule


@pytest.mark.parametrize(
    "make",
    [
        lambda: exponential(1.0, 0.0),
        lambda: warmup(1.0, linear(1.0, 0.0)),
        lambda: steps((0.5, 1.0)),
        lambda: ParameterGroup(match="*", weight_decay=-1.0),
        lambda: Adam(learning_rate=1.0, weight_decay=-1.0),
        lambda: Adam(learning_rate=1.0, average_decay=1.0),
    ],
)
def test_numbers_that_cannot_be_are_refused(make):
    with pytest.raises(BadInput):
        make()


def test_groups_equal_those_of_torchs_adamw():
    """A matrix that decays, a bias that does not, and a critic with a rate of its own."""
    shapes = {"actor_weight": (3, 2), "actor_bias": (2,), "critic_weight": (3, 1)}
    record = Adam(
        learning_rate=0.01,
        max_grad_norm=None,
        weight_decay=0.1,
        groups=(ParameterGroup(match="critic*", learning_rate_scale=3.0, weight_decay=0.5),),
    )
    rng = np.random.default_rng(0)
    named = {
        n: torch.nn.Parameter(torch.from_numpy(rng.standard_normal(s).astype(np.float32)))
        for n, s in shapes.items()
    }
    flat = torch.cat([p.detach().reshape(-1) for p in named.values()])
    gradient = torch.zeros_like(flat)
    ours = FlatAdam(record, flat, gradient, named)
    theirs = torch.optim.AdamW(
        [
            {"params": [named["actor_weight"]], "weight_decay": 0.1},
            {"params": [named["actor_bias"]], "weight_decay": 0.0},
            {"params": [named["critic_weight"]], "lr": 0.03, "weight_decay": 0.5},
        ],
        lr=0.01,
        eps=record.eps,
    )
    for _ in range(5):
        slopes = rng.standard_normal(len(flat)).astype(np.float32)
        gradient.copy_(torch.from_numpy(slopes))
        start = 0
        for parameter in named.values():
            part = torch.from_numpy(slopes[start : start + parameter.numel()])
            parameter.grad = part.reshape(parameter.shape)
            start += parameter.numel()
        ours.step(ours.norm())
        theirs.step()
    expected = torch.cat([p.detach().reshape(-1) for p in named.values()])
    np.testing.assert_allclose(flat.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_group_that_matches_nothing_names_the_parameters():
    record = Adam(learning_rate=1.0, groups=(ParameterGroup(match="value*"),))
    with pytest.raises(BadInput, match="actor_bias"):
        per_parameter(record, {"actor_bias": (2,)})


def test_frozen_parameters_stay_and_the_value_net_has_its_own_rate():
    record = Adam(
        learning_rate=1e-2, groups=(ParameterGroup(match="*critic*", learning_rate_scale=0.0),)
    )
    learner = learner_of(optimizer=record)
    assert learner.name == "torch"
    before = {n: p.detach().clone() for n, p in learner.module.named_parameters()}
    update(learner)
    for name, parameter in learner.module.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved != ("critic" in name), name


def test_the_average_follows_the_parameters_and_is_saved():
    """Of two steps with decay 0.5: a0 = p0, a1 = (a0 + p1) / 2, a2 = (a1 + p2) / 2."""
    learner = learner_of(
        optimizer=Adam(learning_rate=1e-2, average_decay=0.5), epochs=1, minibatch=16
    )
    average = learner.parameters.copy()
    for version in range(2):
        update(learner, version=version)
        average = (average + learner.parameters) / 2
    state = learner.state()
    np.testing.assert_allclose(state[AVERAGE], average, rtol=1e-6)
    other = learner_of(optimizer=Adam(learning_rate=1e-2, average_decay=0.5))
    other.restore(state)
    np.testing.assert_array_equal(other.state()[AVERAGE], state[AVERAGE])


def test_a_saved_learner_goes_on_like_one_that_was_not_interrupted():
    record = Adam(learning_rate=linear(1e-2, 0.0), weight_decay=0.01, average_decay=0.9)
    loss = PPOLoss(kl_weight=0.1, kl="k3", clip=linear(0.3, 0.1))
    through, first, second = (learner_of(optimizer=record, loss=loss) for _ in range(3))
    for version in range(4):
        update(through, version=version)
    for version in range(2):
        update(first, version=version)
    second.load(first.parameters)
    second.restore(first.state())
    for version in range(2, 4):
        update(second, version=version)
    np.testing.assert_array_equal(second.parameters, through.parameters)
    for name, values in through.state().items():
        np.testing.assert_array_equal(second.state()[name], values, err_msg=name)


def test_the_distance_to_the_first_policy_is_measured_and_kept_small():
    far, near = (
        learner_of(loss=PPOLoss(clip=None, kl_weight=weight, kl="k2"), epochs=20)
        for weight in (1e-6, 100.0)
    )
    start = far.state()[REFERENCE]
    found = [update(learner)["reference_kl"] for learner in (far, near)]
    assert 0 < found[1] < found[0]
    np.testing.assert_array_equal(far.state()[REFERENCE], start)
    with pytest.raises(BadInput, match="statistics are others"):
        learner_of(loss=PPOLoss(kl_weight=0.1, kl="k3"), normalize=True)


def test_an_update_ends_early_where_the_policy_goes_too_far():
    whole = learner_of(loss=PPOLoss(target_kl=1e9))
    assert update(whole)["stopped_early"] == 0.0
    short = learner_of(loss=PPOLoss(target_kl=1e-9))
    metrics = update(short)
    assert metrics["stopped_early"] == 1.0
    assert short.state()["adam/steps"][0] < whole.state()["adam/steps"][0]


def test_accumulated_gradients_equal_those_of_the_whole_minibatch():
    loss = PPOLoss(clip=linear(0.2, 0.1), value_huber=0.5)
    learners = [learner_of(loss=loss, shards=shards) for shards in (1, 3, 8)]
    for learner in learners:
        update(learner)
    for other in learners[1:]:
        np.testing.assert_allclose(learners[0].parameters, other.parameters, rtol=1e-3, atol=1e-5)


def test_schedules_of_the_loss_reach_the_fused_learner():
    scheduled = learner_of(loss=PPOLoss(clip=linear(0.4, 0.0), entropy_weight=linear(0.02, 0.0)))
    fixed = learner_of(loss=PPOLoss(clip=0.2, entropy_weight=0.01))
    assert scheduled.name == fixed.name == "fused"
    update(scheduled, version=5)
    update(fixed, version=5)
    np.testing.assert_allclose(scheduled.parameters, fixed.parameters, rtol=1e-6)


def test_policy_gradient_with_vtrace_equals_unclipped_ppo_in_one_step():
    """At its first step the ratio is 1, and so the two gradients are one."""
    settings = {"advantages": vtrace(0.9, 1.0), "epochs": 1, "minibatch": 16}
    plain = learner_of(loss=PolicyGradientLoss(), **settings)
    ratio = learner_of(loss=PPOLoss(clip=None, normalize_advantages="none"), shards=2, **settings)
    update(plain, version=1, acted=0)
    update(ratio, version=1, acted=0)
    np.testing.assert_allclose(plain.parameters, ratio.parameters, rtol=1e-4, atol=1e-6)


def test_cloning_moves_the_mean_to_the_actions_of_the_batch():
    learner = learner_of(
        loss=CloningLoss(),
        advantages=raw_returns(1.0),
        optimizer=Adam(learning_rate=3e-2),
        epochs=300,
        minibatch=16,
    )
    action = np.full((8, 2, 2), (0.7, -0.4), np.float32)
    update(learner, action=action)
    batch = random_batch(SPACES, horizon=8, slots=2)
    seen = {"state": torch.from_numpy(batch["obs/state"][0])}
    with torch.no_grad():
        module = learner.module
        tried = torch.tensor([[0.7, -0.4], [0.0, 0.0]])
        here, there = (module.evaluate(seen, tried[i].expand(2, 2))[0] for i in range(2))
    assert (here > there + 1.0).all()


def test_interpolated_correction_trains_on_older_data():
    learner = learner_of(loss=PPOLoss(correction="interpolate"))
    assert learner.name == "torch"
    metrics = update(learner, version=3, acted=1)
    assert math.isfinite(metrics["policy_loss"])


@pytest.mark.parametrize(
    "loss",
    [
        PPOLoss(normalize_advantages="minibatch"),
        PPOLoss(value_huber=1.0, normalize_advantages="minibatch"),
        PolicyGradientLoss(normalize_advantages="batch"),
        CloningLoss(),
    ],
)
def test_a_minibatch_of_one_gives_no_nan(loss):
    learner = learner_of(loss=loss, minibatch=1, epochs=1)
    assert update(learner)["skipped_steps"] == 0
    assert np.isfinite(learner.parameters).all()
