"""`ActorCritic` for every kind of observation and action, through the engine's own calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.algorithms.learner import make_learner
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe_factory, rebuild
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import ActorCritic
from rlinf_async.models.acting import make_actor
from rlinf_async.models.parameters import initial_parameters
from tests.fixtures.actions import ALL, BITS, BOX, CHOICE, MIXED, chunked
from tests.fixtures.actor_critics import OBSERVATIONS, STATE, build, rows_of, seen

SLOTS, HORIZON = 3, 4


def collected(policy, spaces, parameters, *, normalize=True):
    """One segment of a cell, as rollout fills it; rewards and ends are noise."""
    statistics = Statistics.initial(spaces)
    actor = make_actor(policy, spaces, SLOTS, normalize=normalize)
    actor.load({"parameters": parameters, **statistics.fields()})
    rng, shape = np.random.default_rng(1), (HORIZON, SLOTS)
    row = {f"obs/{n}": r for n, r in rows_of(spaces.observation, HORIZON + 1, SLOTS).items()}
    row |= {f"final/{n}": r for n, r in rows_of(spaces.observation, *shape, seed=1).items()}
    action = spaces.action
    row["action"] = np.zeros((*shape, *action.shape), dtype=action.row_dtype)
    row["logp"], row["final_value"] = np.zeros((2, *shape), dtype=np.float32)
    row["value"] = np.zeros((HORIZON + 1, SLOTS), dtype=np.float32)
    row["terminated"], row["truncated"] = rng.random((2, *shape)) < 0.2
    row["reward"], row["version"] = rng.standard_normal(shape), np.zeros(HORIZON, dtype=np.int64)
    actor.begin(np.random.default_rng(5), HORIZON)
    for t in range(HORIZON):
        row["action"][t] = actor.act(
            t, {s.name: row[f"obs/{s.name}"][t] for s in spaces.observation}
        )
    actor.finish(row, 0, HORIZON)
    row["value"][-1] = actor.value({s.name: row[f"obs/{s.name}"][-1] for s in spaces.observation})
    return row, statistics


@pytest.mark.parametrize("shared", [None, False])
@pytest.mark.parametrize("action", list(ALL))
def test_every_kind_of_space_is_acted_in_and_trained(action, shared):
    spaces = Spaces(observation=OBSERVATIONS, action=ALL[action])
    make_policy = rebuild(
        describe_factory(
            ActorCritic,
            {
                "spaces": spaces,
                "hidden": (16,),
                "shared": shared,
                "image_channels": 4,
                "image_features": 8,
            },
            where="test",
        ),
        where="test",
    )
    policy, shapes, initial = initial_parameters(make_policy, seed=(0, 2))
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == initial.size
    row, statistics = collected(policy, spaces, initial)
    learner = make_learner(
        policy,
        spaces,
        loss=PPOLoss(clip=0.2, entropy_weight=0.01),
        optimizer=Adam(learning_rate=1e-3),
        advantages=gae(gamma=0.9, lam=0.9),
        epochs=2,
        minibatch=6,
        normalize=True,
        iterations=1,
    )
    learner.load(initial)
    metrics = learner.update(row, statistics=statistics, scales={0: 1.0}, version=0, seed=0)
    assert metrics["first_log_ratio_max"] < 1e-5
    assert metrics["grad_norm"] > 0
    assert metrics["skipped_steps"] == 0
    assert not np.array_equal(learner.parameters, initial)


def test_the_same_cell_acts_the_same_bits_again():
    policy, _ = build(OBSERVATIONS, MIXED)
    _, _, initial = initial_parameters(lambda: policy, seed=(3, 2))
    first, _ = collected(policy, policy.spaces, initial)
    again, _ = collected(policy, policy.spaces, initial)
    for name in ("action", "logp", "value", "final_value"):
        np.testing.assert_array_equal(first[name], again[name])


def test_the_first_weights_follow_from_the_seed_alone():
    policy, _ = build()
    drawn = [initial_parameters(lambda: policy, seed=(seed, 2))[2] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"activation": "relu"}, {"hidden": ()}])
def test_acting_and_evaluating_agree(options):
    _, module = build(OBSERVATIONS, MIXED, **options)
    observation = seen(OBSERVATIONS, 5)
    action, logp, value = module.act(observation, np.random.default_rng(0))
    again, entropy, value_again = module.evaluate(observation, action)
    torch.testing.assert_close(logp, again)
    torch.testing.assert_close(value, value_again)
    torch.testing.assert_close(value, module.value(observation))
    assert entropy.shape == (5,)
    assert torch.equal(
        module.mean(observation),
        module.outputs.head.mode(module.outputs.actor(module.trunks[0](observation))),
    )


def test_actor_and_critic_share_everything_or_nothing():
    def touched(module, figure):
        module.zero_grad()
        figure.sum().backward()
        return {n for n, p in module.named_parameters() if p.grad is not None and p.grad.any()}

    for shared in (True, False):
        _, module = build(shared=shared)
        observation = seen((STATE,), 5)
        logp, _, value = module.evaluate(observation, torch.ones(5, 3))
        common = touched(module, logp) & touched(module, module.value(observation))
        assert bool(common) == shared
        assert value.shape == (5,)


def test_images_and_cores_are_shared_unless_told_otherwise():
    assert not build()[0].is_shared
    assert build(OBSERVATIONS)[0].is_shared
    assert build(recurrent="gru")[0].is_shared
    assert not build(recurrent="gru", shared=False)[0].is_shared


@pytest.mark.parametrize("squash", [False, True])
def test_chunks_count_as_far_as_they_were_executed(squash):
    _, module = build(action=chunked(BOX, 3), chunk=3, squash=squash)
    observation = seen((STATE,), 4)
    action, logp, _ = module.act(observation, np.random.default_rng(0))
    assert action.shape == (4, 3, 3)
    whole, _, _ = module.evaluate(observation, action)
    torch.testing.assert_close(logp, whole)
    none, entropy, _ = module.evaluate(observation, action, torch.zeros(4, dtype=torch.int64))
    assert not none.any()
    assert not entropy.any()
    parts = [module.evaluate(observation, action, torch.full((4,), count))[0] for count in range(4)]
    torch.testing.assert_close(parts[3], whole)
    head = module.outputs.head
    output = module.outputs.actor(module.trunks[0](observation))
    torch.testing.assert_close(parts[2] - parts[1], head.logp_parts(output, action)[:, 1])


def test_first_actions_hardly_depend_on_the_observation():
    _, module = build(OBSERVATIONS, BOX)
    assert module.mean(seen(OBSERVATIONS, 50)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("action", "options", "word"),
    [
        (CHOICE, {"squash": True}, "nothing to squash"),
        (BITS, {"squash": True}, "nothing to squash"),
        (BOX, {"hidden": (0,)}, "hidden"),
        (BOX, {"recurrent": "lstm"}, "recurrent"),
        (BOX, {"activation": "gelu"}, "activation"),
        (BOX, {"embedding": 0}, "embedding"),
        (BOX, {"log_std": float("nan")}, "log_std"),
        (BOX, {"text": ("instruction",)}, "no observation of bytes"),
        (ActionSpec(kind="discrete", shape=(), dtype="int64", count=0), {}, "action is empty"),
    ],
)
def test_what_cannot_be_right_is_refused_when_described(action, options, word):
    with pytest.raises(BadInput, match=word):
        ActorCritic(Spaces(observation=(STATE,), action=action), **options)


def test_observations_and_chunks_that_cannot_be_right_are_refused():
    tiny = ArraySpec(name="image", shape=(4, 4, 3), dtype="uint8")
    with pytest.raises(BadInput, match="too small"):
        ActorCritic(Spaces(observation=(tiny,), action=BOX))
    with pytest.raises(BadInput, match="empty"):
        ActorCritic(Spaces(observation=(), action=BOX))
    with pytest.raises(BadInput, match="chunks of 5"):
        ActorCritic(Spaces(observation=(STATE,), action=BOX, chunk=5))


def test_declared_ranges_of_observations_travel():
    spaces = Spaces(observation=OBSERVATIONS, action=MIXED)
    assert Spaces.from_json(spaces.to_json()) == spaces
