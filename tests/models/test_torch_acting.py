"""Acting with a torch policy: rows, versions, shapes of calls, agreement with the numpy actor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_async.algorithms.normalizers import Moments, Statistics
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic
from rlinf_async.models.acting import make_actor
from rlinf_async.models.torch_acting import TorchActor
from tests.fixtures.batches import random_batch, vector_spaces

SLOTS, HORIZON = 3, 5


class SumPolicy(nn.Module):
    """Value = offset + sum of the observation; records the shape of every call."""

    def __init__(self, spaces):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))
        self.calls = []

    def act(self, observation, rng):
        self.calls.append(("act", observation["state"].shape))
        count = len(observation["state"])
        action = torch.from_numpy(rng.standard_normal((count, 2), dtype=np.float32))
        return action, -action.square().sum(dim=1), self._value(observation)

    def evaluate(self, observation, action):
        value = self._value(observation)
        return -action.square().sum(dim=1), value * 0, value

    def value(self, observation):
        self.calls.append(("value", next(iter(observation.values())).shape))
        return self._value(observation)

    def _value(self, observation):
        return self.offset + observation["state"].sum(dim=1)


SPACES = vector_spaces(widths={"state": 3})


def weights(parameters, spaces=SPACES, *, mean=0.0, var=1.0):
    moments = {
        spec.name: Moments(count=1.0, mean=np.full(spec.shape, mean), var=np.full(spec.shape, var))
        for spec in spaces.observation
    }
    fields = Statistics(observations=moments, returns=Moments.initial()).fields()
    return {"parameters": np.asarray(parameters, dtype=np.float32), **fields}


def collect(actor, row, spaces, *, stops=(HORIZON,), rows=None):
    """Act over `row`'s observations, changing to the next of `rows` after each stop."""
    rows = rows or [weights([0.0])]
    actor.begin(np.random.default_rng(5), HORIZON)
    start = 0
    for stop, loaded in zip(stops, rows, strict=True):
        actor.load(loaded)
        for t in range(start, stop):
            seen = {spec.name: row[f"obs/{spec.name}"][t] for spec in spaces.observation}
            row["action"][t] = actor.act(t, seen)
        actor.finish(row, start, stop)
        start = stop
    last = {spec.name: row[f"obs/{spec.name}"][HORIZON] for spec in spaces.observation}
    row["value"][HORIZON] = actor.value(last)


def test_each_steps_log_prob_and_value_come_from_the_version_that_acted():
    actor = TorchActor(SumPolicy(SPACES), SPACES, SLOTS, normalize=False)
    row = random_batch(SPACES, horizon=HORIZON, slots=SLOTS, end_rate=0.5)
    rows = [weights([1.0]), weights([100.0])]
    collect(actor, row, SPACES, stops=(2, HORIZON), rows=rows)
    offset = np.array([1, 1, 100, 100, 100, 100])[:, None]
    np.testing.assert_allclose(row["value"], offset + row["obs/state"].sum(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(row["logp"], -np.square(row["action"]).sum(axis=-1), rtol=1e-5)
    cut = row["truncated"] & ~row["terminated"]
    assert cut.any()
    ends = np.where(cut, offset[:-1] + row["final/state"].sum(axis=-1), 0.0)
    np.testing.assert_allclose(row["final_value"], ends, rtol=1e-5, atol=1e-5)


def test_every_call_of_the_policy_has_the_cells_shape():
    policy = SumPolicy(SPACES)
    actor = TorchActor(policy, SPACES, SLOTS, normalize=False)
    row = random_batch(SPACES, horizon=HORIZON, slots=SLOTS, end_rate=0.4)
    row["truncated"][0], row["terminated"][0] = True, False
    collect(actor, row, SPACES)
    assert {shape for _, shape in policy.calls} == {(SLOTS, 3)}
    ends = int((row["truncated"] & ~row["terminated"]).sum())
    assert sum(kind == "value" for kind, _ in policy.calls) == -(-ends // SLOTS) + 1


def test_observations_are_normalised_with_the_rows_moments():
    actor = TorchActor(SumPolicy(SPACES), SPACES, SLOTS, normalize=True)
    row = random_batch(SPACES, horizon=HORIZON, slots=SLOTS)
    collect(actor, row, SPACES, rows=[weights([0.0], mean=0.5, var=4.0)])
    seen = np.clip((row["obs/state"] - 0.5) / 2.0, -10, 10)
    np.testing.assert_allclose(row["value"], seen.sum(axis=-1), rtol=1e-5, atol=1e-5)


def test_images_and_choices_pass_through_unchanged():
    spaces = Spaces(
        observation=(ArraySpec(name="image", shape=(2, 2), dtype="uint8"),),
        action=ActionSpec(kind="discrete", shape=(), dtype="int32", count=3, start=1),
    )

    class Brightest(SumPolicy):
        def act(self, observation, rng):
            assert observation["image"].dtype == torch.uint8
            action = observation["image"].flatten(1).argmax(dim=1)
            value = self._value(observation)
            return action, value * 0, value

        def _value(self, observation):
            return self.offset + observation["image"].float().sum(dim=(1, 2))

    actor = TorchActor(Brightest(spaces), spaces, SLOTS, normalize=True)
    actor.load(weights([0.0], spaces))
    actor.begin(np.random.default_rng(0), 1)
    image = np.random.default_rng(0).integers(11, 250, (SLOTS, 2, 2)).astype(np.uint8)
    action = actor.act(0, {"image": image})
    assert action.dtype == np.int64
    np.testing.assert_array_equal(action, image.reshape(SLOTS, 4).argmax(axis=1))
    np.testing.assert_array_equal(actor.value({"image": image}), image.sum(axis=(1, 2)))


def test_loading_copies_so_that_a_rows_next_owner_changes_nothing():
    actor = TorchActor(SumPolicy(SPACES), SPACES, SLOTS, normalize=False)
    loaded = weights([1.0])
    actor.load(loaded)
    loaded["parameters"][0] = 99.0
    assert actor.value({"state": np.zeros((SLOTS, 3), dtype=np.float32)})[0] == 1.0


def test_a_users_module_gets_the_torch_actor():
    actor = make_actor(SumPolicy(SPACES), SPACES, SLOTS, normalize=True)
    assert isinstance(actor, TorchActor)


@pytest.mark.parametrize("discrete", [False, True], ids=["gaussian", "categorical"])
def test_torch_and_numpy_actors_agree_on_log_probs_and_values(discrete):
    spaces = vector_spaces(widths={"state": 3, "goal": 2}, actions=4, discrete=discrete)
    kind = CategoricalActorCritic if discrete else GaussianActorCritic
    policy = kind(spaces, hidden=(8, 8))
    loaded = weights(policy.initial_parameters(np.random.default_rng(0)), spaces, mean=0.5, var=4.0)
    numpy_row = random_batch(spaces, horizon=HORIZON, slots=SLOTS)
    collect(make_actor(policy, spaces, SLOTS, normalize=True), numpy_row, spaces, rows=[loaded])

    actor = TorchActor(policy, spaces, SLOTS, normalize=True)
    row = {name: array.copy() for name, array in numpy_row.items()}
    collect(actor, row, spaces, rows=[loaded])
    np.testing.assert_allclose(row["value"], numpy_row["value"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(row["final_value"], numpy_row["final_value"], rtol=1e-4, atol=1e-5)
    if not discrete:
        # The same generator gives both the same noise.
        np.testing.assert_allclose(row["action"], numpy_row["action"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(row["logp"], numpy_row["logp"], rtol=1e-4, atol=1e-5)
