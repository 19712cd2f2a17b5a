"""The fused learner: whole updates, reproducibility, resumption, and what is not finite."""

import numpy as np
import pytest

from rlinf_async.algorithms import Adam, PPOLoss, gae, linear, vtrace
from rlinf_async.algorithms.learner import NON_FINITE_LIMIT, make_learner
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.errors import BadInput, EngineError
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import GaussianActorCritic

HORIZON, SLOTS = 8, 12
SPACES = Spaces(
    observation=(ArraySpec(name="state", shape=(5,), dtype="float32"),),
    action=ActionSpec(
        kind="continuous", shape=(2,), dtype="float32", low=(-1.0,) * 2, high=(1.0,) * 2
    ),
)
POLICY = GaussianActorCritic(SPACES, hidden=(16, 16))


def batch_of(version, acted, seed=0):
    rng = np.random.default_rng((seed, version))
    steps = (HORIZON, SLOTS)
    ended = rng.random(steps) < 0.1
    terminated = ended & (rng.random(steps) < 0.5)
    return {
        "obs/state": rng.standard_normal((HORIZON + 1, SLOTS, 5)).astype(np.float32),
        "final/state": rng.standard_normal((*steps, 5)).astype(np.float32),
        "action": rng.standard_normal((*steps, 2)).astype(np.float32),
        "logp": rng.normal(-3.0, 0.3, steps).astype(np.float32),
        "value": rng.standard_normal((HORIZON + 1, SLOTS)).astype(np.float32),
        "final_value": (rng.standard_normal(steps) * (ended & ~terminated)).astype(np.float32),
        "reward": rng.standard_normal(steps),
        "terminated": terminated,
        "truncated": ended & ~terminated,
        "version": np.full(steps, acted, np.int64),
    }


def learner_of(policy=POLICY, *, loss=None, advantages=None, max_lag=0, minibatch=24):
    learner = make_learner(
        policy,
        SPACES,
        loss=loss or PPOLoss(),
        optimizer=Adam(learning_rate=linear(1e-2, 0.0)),
        advantages=advantages or gae(0.99, 0.95, scale_rewards=True),
        epochs=3,
        minibatch=minibatch,
        normalize=True,
        iterations=10,
        max_lag=max_lag,
    )
    learner.load(POLICY.initial_parameters(np.random.default_rng(3)))
    return learner


def train(learner, versions, *, lag=0):
    metrics = {}
    for version in versions:
        acted = max(0, version - lag)
        metrics = learner.update(
            batch_of(version, acted),
            statistics=Statistics.initial(SPACES),
            scales={acted: 1.5},
            version=version,
            seed=7,
        )
    return learner.parameters.copy(), metrics


CASES = {
    "plain": ({}, 0),
    "minibatch": ({"loss": PPOLoss(normalize_advantages="minibatch", value_clip=0.2)}, 0),
    "entropy": ({"loss": PPOLoss(clip_high=0.3, dual_clip=2.0, entropy_weight=0.01)}, 0),
    "decoupled": ({"loss": PPOLoss(correction="decoupled"), "max_lag": 1}, 1),
    "vtrace": ({"advantages": vtrace(0.99, 0.95, scale_rewards=True), "max_lag": 1}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_three_updates_equal_those_of_the_torch_learner(name):
    settings, lag = CASES[name]
    fused, torch_ = learner_of(**settings), learner_of(POLICY.to_module(), **settings)
    assert (fused.name, torch_.name) == ("fused", "torch")
    mine, my_metrics = train(fused, range(3), lag=lag)
    theirs, their_metrics = train(torch_, range(3), lag=lag)
    np.testing.assert_allclose(mine, theirs, atol=3e-5)
    assert my_metrics.keys() == their_metrics.keys()
    for key, value in their_metrics.items():
        assert my_metrics[key] == pytest.approx(value, rel=2e-3, abs=2e-4), key


def test_the_same_updates_give_the_same_bits():
    first, second = train(learner_of(), range(3))[0], train(learner_of(), range(3))[0]
    np.testing.assert_array_equal(first, second)


def test_restored_optimizer_state_goes_on_bit_for_bit():
    whole, _ = train(learner_of(), range(4))
    half = learner_of()
    train(half, range(2))
    resumed = learner_of()
    resumed.load(half.parameters)
    resumed.restore(half.state())
    np.testing.assert_array_equal(train(resumed, range(2, 4))[0], whole)


def test_a_minibatch_that_does_not_divide_the_batch_still_uses_every_entry():
    parameters, metrics = train(learner_of(minibatch=35), [0])
    assert np.isfinite(parameters).all()
    assert metrics["skipped_steps"] == 0


def test_steps_that_are_not_finite_are_skipped_and_too_many_end_the_run():
    learner = learner_of(minibatch=96)
    bad = batch_of(0, 0)
    bad["reward"][0, 0] = np.nan
    before = learner.parameters.copy()
    arguments = {"statistics": Statistics.initial(SPACES), "scales": {0: 1.0}, "seed": 0}
    for _ in range(NON_FINITE_LIMIT // 3):  # three epochs of one mini-batch each
        assert learner.update(bad, version=0, **arguments)["skipped_steps"] == 3
    with pytest.raises(EngineError, match="not finite") as caught:
        learner.update(bad, version=0, **arguments)
    np.testing.assert_array_equal(learner.parameters, before)
    assert "not finite" in caught.value.__notes__[0]


def test_parameters_of_another_policy_are_refused():
    with pytest.raises(BadInput, match="another shape"):
        learner_of().load(np.zeros(3, np.float32))
