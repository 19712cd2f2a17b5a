"""Learning from groups of whole episodes: what reaches the loss, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import structlog
import torch

from rlinf_async.algorithms import (
    Adam,
    GroupLoss,
    PPOLoss,
    dapo,
    dr_grpo,
    gae,
    group_relative,
    grpo,
    reinforce_pp,
)
from rlinf_async.algorithms.group_learner import make_group_learner
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.errors import BadInput
from rlinf_async.models import GaussianActorCritic
from rlinf_async.scheduling.work_list import Episodes
from tests.fixtures.batches import vector_spaces

SPACES = vector_spaces(widths={"state": 3})
LENGTHS = (4, 1, 6, 3, 2, 5)
"""Of the episodes of two groups of three."""
GROUPS = Episodes(groups=2, size=3, limit=7)


def learner_of(*, normalize=False, episodes=GROUPS, **changes):
    policy = GaussianActorCritic(SPACES, hidden=(8, 8))
    settings = {
        "loss": grpo(kl_weight=0.0),
        "advantages": group_relative(),
        "optimizer": Adam(learning_rate=1e-2),
        "epochs": 1,
        "minibatch": 100,
        "iterations": 4,
        "max_lag": 0,
        "lag": "exact",
        "shards": 1,
        **changes,
    }
    learner = make_group_learner(policy, normalize=normalize, episodes=episodes, **settings)
    learner.load(policy.initial_parameters(np.random.default_rng(0)))
    return learner


def batch_of(learner, scores=(0.0, 1.0, 1.0, 0.0, 0.0, 2.0)):
    rng = np.random.default_rng(1)
    count = sum(LENGTHS)
    batch = {
        "obs/state": rng.normal(size=(count, 3)).astype(np.float32),
        "action": rng.normal(size=(count, *SPACES.action.shape)).astype(np.float32),
        "version": np.zeros(count, np.int64),
        "episode": np.repeat(np.arange(6), LENGTHS),
        "number": np.arange(6),
        "group": np.repeat([0, 1], 3),
        "score": np.array(scores),
        "reward": rng.normal(size=count),
    }
    batch["logp"] = learner._evaluator.logp({"state": batch["obs/state"]}, batch["action"])
    return batch


def update(learner, batch, version=0):
    statistics = Statistics.initial(SPACES)
    return learner.update(batch, statistics=statistics, scales={}, version=version, seed=3)


def gradient(learner, batch):
    """The first step's gradient."""
    update(learner, batch)
    return learner._adam.gradient.numpy().copy()


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (grpo(kl_weight=0.0), lambda n: 1 / (6 * n)),
        (dr_grpo(length_limit=7), lambda n: 1 / (6 * 7)),
        (dapo(), lambda n: 1 / sum(LENGTHS)),
    ],
)
def test_each_loss_weighs_entries_as_its_paper_says(loss, weight):
    learner = learner_of(loss=loss, optimizer=Adam(learning_rate=1e-2, max_grad_norm=None))
    batch = batch_of(learner)
    found = gradient(learner, batch)
    slow = learner_of()
    total = torch.zeros(())
    # By hand: group 0 scores 0, 1, 1 have mean 2/3 and deviation sqrt(1/3); group 1 likewise.
    scores = ((0.0, 1.0, 1.0), (0.0, 0.0, 2.0))
    for group, values in enumerate(scores):
        mean = sum(values) / 3
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
        for member, score in enumerate(values):
            at = batch["episode"] == group * 3 + member
            seen = {"state": torch.from_numpy(batch["obs/state"][at])}
            logp, _, _ = slow.module.evaluate(seen, torch.from_numpy(batch["action"][at]))
            ratio = (logp - torch.from_numpy(batch["logp"][at])).exp()
            advantage = (score - mean) / (spread + 1e-6)
            total = total - (advantage * ratio).sum() * weight(int(at.sum()))
    slow._adam.gradient.zero_()
    total.backward()
    np.testing.assert_allclose(found, slow._adam.gradient.numpy(), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [grpo(), dr_grpo(length_limit=7), dapo()])
def test_mini_batches_and_shards_add_up_to_the_batch(loss):
    whole = gradient(learner_of(loss=loss), batch_of(learner_of()))
    sharded = gradient(learner_of(loss=loss, shards=3), batch_of(learner_of()))
    np.testing.assert_allclose(whole, sharded, rtol=1e-4, atol=1e-6)
    learner = learner_of(loss=loss, optimizer=Adam(learning_rate=1e-12, max_grad_norm=None))
    batch, parts = batch_of(learner), []
    step = learner._adam.step
    learner._adam.step = lambda norm: (parts.append(learner._adam.gradient.clone()), step(norm))
    learner._minibatch = 7
    update(learner, batch)
    assert len(parts) == 3
    mean = torch.stack(parts).mean(0).numpy()
    np.testing.assert_allclose(mean, whole, rtol=1e-3, atol=1e-5)


def test_all_ties_leave_the_policy_as_it_is():
    learner = learner_of(loss=grpo())
    update(learner, batch_of(learner))  # so that there is momentum
    before = learner.parameters.copy()
    with structlog.testing.capture_logs() as logs:
        metrics = update(learner, batch_of(learner, scores=(0.1, 0.1, 0.1, 7.3, 7.3, 7.3)))
    assert metrics == {"skipped_update": 1.0}
    assert before.tobytes() == learner.parameters.tobytes()
    assert [entry["event"] for entry in logs] == ["update_skipped"]
    nothing = {name: rows[:0] for name, rows in batch_of(learner).items()}
    assert update(learner, nothing) == {"skipped_update": 1.0}
    assert before.tobytes() == learner.parameters.tobytes()


def test_the_distance_to_the_first_policy_is_0_at_first_and_then_grows():
    learner = learner_of(loss=grpo(kl_weight=0.1))
    batch = batch_of(learner)
    first, later = (update(learner, batch)["reference_kl"] for _ in range(2))
    assert first == 0.0
    assert later > 1e-6


def test_reinforce_pp_sums_rewards_within_each_episode():
    learner = learner_of(advantages=reinforce_pp(gamma=0.5))
    batch = batch_of(learner)
    returns, start = [], 0
    for length in LENGTHS:
        rewards = batch["reward"][start : start + length]
        returns += [sum(0.5**k * rewards[t + k] for k in range(length - t)) for t in range(length)]
        start += length
    slow = (np.array(returns) - np.mean(returns)) / (np.std(returns) + 1e-8)
    np.testing.assert_allclose(learner._advantages(batch, None), slow, rtol=1e-5, atol=1e-6)
    kept_near = learner_of(advantages=reinforce_pp(gamma=0.5, kl_weight=0.3))
    moved = kept_near._advantages(batch, batch["logp"] - np.float32(1.0))
    assert not np.allclose(moved, slow)
    based = learner_of(advantages=reinforce_pp(group_baseline=True))._advantages(batch, None)
    assert len(set(based[batch["episode"] == 2])) == 1


def test_long_episodes_lose_with_a_cushion():
    learner = learner_of(advantages=group_relative("dr_grpo", overlong_cushion=3))
    found = learner._advantages(batch_of(learner, scores=(1.0,) * 6), None)
    # Beyond 7 - 3 steps: lengths 6 and 5 lose 2/3 and 1/3; the means of the groups are 2/9 and 1/9.
    at_start = np.cumsum((0, *LENGTHS))[:-1]
    expected = [2 / 9, 2 / 9, -4 / 9, 1 / 9, 1 / 9, -2 / 9]
    np.testing.assert_allclose(found[at_start], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"loss": PPOLoss()}, "loss"),
        ({"advantages": gae(0.9, 0.9)}, "advantages"),
        ({"optimizer": 3}, "optimizer"),
        ({"loss": GroupLoss(engine_weight_cap=2.0)}, "engine_weight_cap"),
        ({"lag": "free", "max_lag": 1}, "free lag"),
        ({"episodes": Episodes(groups=2, size=1, limit=7)}, "nobody to be compared with"),
        ({"advantages": reinforce_pp(kl_weight=0.1), "loss": grpo()}, "in the rewards and"),
        ({"advantages": group_relative(overlong_cushion=9)}, "overlong_cushion"),
        ({"loss": grpo(), "normalize": True}, "compares with the first version"),
        ({"advantages": reinforce_pp(kl_weight=0.1), "normalize": True}, "first version"),
    ],
)
def test_switches_that_do_not_fit_are_refused(changes, what):
    with pytest.raises(BadInput, match=what):
        learner_of(**changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: group_relative("ppo"),
        lambda: group_relative(overlong_cushion=0),
        lambda: reinforce_pp(gamma=1.5),
        lambda: reinforce_pp(kl_weight=-1.0),
        lambda: reinforce_pp(group_baseline=True, kl_weight=0.1),
        lambda: reinforce_pp(group_baseline=True, gamma=0.9),
    ],
)
def test_records_refuse_what_has_no_effect(make):
    with pytest.raises(BadInput):
        make()
