"""Cloning of recordings and of batches that are kept: what is trained on, state, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf_async.algorithms import Adam, CloningLoss, raw_returns
from rlinf_async.algorithms.imitation_learner import ImitationLearner, read_demonstrations
from rlinf_async.algorithms.learner import make_learner
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.errors import BadInput
from rlinf_async.models import ActorCritic, GaussianActorCritic
from rlinf_async.recording import RecordingWriter
from tests.fixtures.batches import random_batch, vector_spaces

SPACES = vector_spaces()


def learner_of(loss, **changes):
    policy = GaussianActorCritic(SPACES, hidden=(16,))
    settings = {
        "loss": loss,
        "optimizer": Adam(learning_rate=1e-2),
        "advantages": raw_returns(1.0),
        "epochs": 3,
        "minibatch": 16,
        "normalize": False,
        "iterations": 10,
        **changes,
    }
    learner = make_learner(policy, SPACES, **settings)
    learner.load(policy.initial_parameters(np.random.default_rng(0)))
    return learner


def update(learner, version=0, **changes):
    batch = random_batch(SPACES, horizon=4, slots=3, seed=version) | changes
    arguments = {"statistics": Statistics.initial(SPACES), "scales": {}, "seed": 3}
    return learner.update(batch, version=version, **arguments)


def record(folder, spaces=SPACES, episodes=2, gain=0.5):
    """Episodes whose action is `gain` times the first two numbers of the state."""
    rng = np.random.default_rng(1)
    writer = RecordingWriter(folder, spaces=spaces, env="test")
    for number in range(episodes):
        episode = writer.open(seed=number)
        for _ in range(20):
            state = rng.normal(0.5, 2.0, 3).astype(np.float32)
            action = gain * state[: spaces.action.shape[0]]
            ends = {"terminated": False, "truncated": False}
            episode.add({"state": state}, action, action, reward=0.0, **ends)
        episode.finish({"state": np.full(3, np.nan, np.float32)})
    return str(folder)


def test_a_recording_is_cloned_and_the_batch_is_not_trained_on(tmp_path):
    loss = CloningLoss(demonstrations=record(tmp_path / "demos"), keep=0)
    learner = learner_of(loss, epochs=12, minibatch=40, optimizer=Adam(learning_rate=3e-2))
    assert isinstance(learner, ImitationLearner)
    broken = {"action": np.full((4, 3, 2), np.nan, np.float32)}
    first = update(learner, **broken)
    assert first["imitated_entries"] == 40
    for version in range(1, 10):
        last = update(learner, version, **broken)
    assert last["policy_loss"] < first["policy_loss"] - 0.5
    state = torch.tensor([[1.0, -2.0, 0.0]])
    with torch.no_grad():
        tried = torch.tensor([[0.5, -1.0], [-0.5, 1.0]])
        near, far = (learner.module.evaluate({"state": state}, tried[i : i + 1])[0] for i in (0, 1))
    assert near > far + 1.0


@pytest.mark.parametrize(("keep", "sizes"), [(1, [12, 12, 12]), (2, [12, 24, 24])])
def test_batches_are_kept_for_as_long_as_asked(keep, sizes):
    learner = learner_of(CloningLoss(keep=keep))
    found = [update(learner, version)["imitated_entries"] for version in range(3)]
    assert found == sizes


def test_kept_batches_are_copies_and_demonstrations_are_added(tmp_path):
    loss = CloningLoss(demonstrations=record(tmp_path / "demos"), keep=5)
    learner = learner_of(loss)
    action = np.ones((4, 3, 2), np.float32)
    update(learner, action=action)
    action[...] = np.nan  # as a row that is used again
    metrics = update(learner, 1)
    assert metrics["imitated_entries"] == 40 + 2 * 12
    assert metrics["skipped_steps"] == 0


def test_a_saved_learner_remembers_what_it_imitates():
    through, first, second = (learner_of(CloningLoss(keep=3)) for _ in range(3))
    for version in range(5):
        update(through, version)
    for version in range(3):
        update(first, version)
    second.load(first.parameters)
    second.restore(first.state())
    for version in range(3, 5):
        update(second, version)
    np.testing.assert_array_equal(second.parameters, through.parameters)


def test_recordings_that_do_not_fit_are_refused(tmp_path):
    folder = record(tmp_path / "demos")
    with pytest.raises(BadInput, match="'goal' is not what the policy sees"):
        read_demonstrations(folder, vector_spaces(widths={"goal": 3}))
    with pytest.raises(BadInput, match="another space"):
        read_demonstrations(folder, vector_spaces(actions=1))
    with pytest.raises(BadInput, match="no complete episode"):
        read_demonstrations(record(tmp_path / "empty", episodes=0), SPACES)
    with pytest.raises(BadInput, match="no recording"):
        read_demonstrations(str(tmp_path / "absent"), SPACES)
    with pytest.raises(BadInput, match="nothing to imitate"):
        CloningLoss(keep=0)


def test_a_policy_that_remembers_clones_the_present_batch_only():
    policy = ActorCritic(SPACES, hidden=(8,), recurrent="gru")
    settings = {
        "optimizer": Adam(learning_rate=1e-2),
        "advantages": raw_returns(1.0),
        "epochs": 1,
        "minibatch": 4,
        "normalize": False,
        "iterations": 2,
    }
    with pytest.raises(BadInput, match="whole sequences"):
        make_learner(policy, SPACES, loss=CloningLoss(keep=2), **settings)
    assert make_learner(policy, SPACES, loss=CloningLoss(), **settings).name == "torch"
