"""A checkpoint folder acts from plain Python, without the engine."""

import numpy as np
import pytest

from rlinf_async import BadInput, load_policy
from rlinf_async.algorithms.normalizers import Moments, Statistics
from rlinf_async.algorithms.optimizers import AVERAGE
from rlinf_async.execution.checkpoint import write_checkpoint
from rlinf_async.execution.references import describe_factory
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic

STATE = (ArraySpec(name="state", shape=(3,), dtype="float32"),)
BOX = ActionSpec(kind="continuous", shape=(2,), dtype="float64", low=(-0.1, -2.0), high=(0.1, 2.0))
CHOICE = ActionSpec(kind="discrete", shape=(), dtype="int64", count=3, start=-1)


def save(folder, kind, action, optimizer=None):
    spaces = Spaces(observation=STATE, action=action)
    policy = kind(spaces, hidden=(8,))
    rng = np.random.default_rng(0)
    parameters = policy.initial_parameters(rng)
    parameters = parameters + rng.standard_normal(parameters.size).astype(np.float32)
    moments = Moments(count=5.0, mean=np.ones(3), var=np.full(3, 4.0))
    statistics = Statistics(observations={"state": moments}, returns=Moments.initial())
    write_checkpoint(
        folder,
        parameters=parameters,
        parameter_shapes=policy.parameter_shapes(),
        statistics=statistics.fields(),
        policy={
            "policy": describe_factory(kind, {"spaces": spaces, "hidden": (8,)}, where="test"),
            "spaces": spaces.to_json(),
            "normalize_observations": True,
        },
        manifest={"version": 5},
        optimizer=optimizer or {},
    )
    return policy, parameters


def test_actions_are_the_mean_within_the_bounds_and_of_the_environments_dtype(tmp_path):
    policy, parameters = save(tmp_path / "saved", GaussianActorCritic, BOX)
    loaded = load_policy(tmp_path / "saved")
    observation = np.array([2.0, 0.0, -1.0])
    action = loaded.act(observation)
    pair = policy.to_kernel()
    pair.parameters[:] = parameters
    nets = pair.open(1)
    nets.x[0, :-1] = (observation - 1.0) / 2.0
    nets.forward()
    assert action.shape == (2,)
    assert action.dtype == np.float64
    np.testing.assert_allclose(action, np.clip(nets.output[:, 0], BOX.low, BOX.high), atol=1e-5)
    assert loaded.manifest["version"] == 5


def test_a_batch_gives_a_batch_and_a_mapping_is_as_good_as_an_array(tmp_path):
    save(tmp_path / "saved", GaussianActorCritic, BOX)
    loaded = load_policy(str(tmp_path / "saved"))
    rows = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    batch = loaded.act({"state": rows})
    assert batch.shape == (4, 2)
    np.testing.assert_allclose(batch[2], loaded.act(rows[2]), atol=1e-6)


def test_sampled_actions_repeat_with_a_seed_and_differ_from_the_mean(tmp_path):
    save(tmp_path / "saved", GaussianActorCritic, BOX)
    loaded = load_policy(tmp_path / "saved")
    drawn = []
    for _ in range(2):
        loaded.seed(3)
        drawn.append(loaded.act(np.zeros(3), deterministic=False))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], loaded.act(np.zeros(3)))


def test_choices_come_in_the_environments_own_numbering(tmp_path):
    save(tmp_path / "saved", CategoricalActorCritic, CHOICE)
    loaded = load_policy(tmp_path / "saved")
    loaded.seed(0)
    drawn = [loaded.act(np.zeros(3), deterministic=False) for _ in range(2000)]
    assert set(np.stack(drawn).tolist()) == {-1, 0, 1}


@pytest.mark.parametrize("lost", ["COMPLETE", "weights.safetensors"])
def test_an_incomplete_checkpoint_is_refused(tmp_path, lost):
    save(tmp_path / "saved", GaussianActorCritic, BOX)
    (tmp_path / "saved" / lost).unlink()
    with pytest.raises(BadInput, match=lost.split(".")[0]):
        load_policy(tmp_path / "saved")


@pytest.mark.parametrize("name", ["choices", "bits", "mixed"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_actions_of_every_kind_are_the_environments_own(name, chunk):
    from rlinf_async.execution.spaces import chunked
    from rlinf_async.models import ActorCritic
    from rlinf_async.models.loading import LoadedPolicy
    from rlinf_async.models.parameters import initial_parameters
    from tests.fixtures.actions import ALL

    spaces = Spaces(observation=STATE, action=chunked(ALL[name], chunk), chunk=chunk)
    policy = ActorCritic(spaces, hidden=(8,))
    module, _, parameters = initial_parameters(lambda: policy, seed=(1,))
    loaded = LoadedPolicy(module, spaces, parameters, None, {})
    loaded.seed(0)
    steps = (chunk,) if chunk > 1 else ()
    one, many = (
        loaded.act(np.zeros(shape, np.float32), deterministic=False) for shape in ((3,), (200, 3))
    )
    if name != "mixed":
        one, many, parts = {"": one}, {"": many}, {"": ALL[name]}
    else:
        parts = {part.name: part.spec for part in ALL[name].parts}
    assert set(one) == set(parts)
    for key, spec in parts.items():
        assert one[key].shape == (*steps, *spec.shape)
        assert many[key].shape == (200, *steps, *spec.shape)
        assert many[key].dtype == spec.dtype
        if spec.kind == "multi_discrete":
            starts, counts = np.array(spec.starts), np.array(spec.counts)
            flat = many[key].reshape(-1, len(counts))
            assert (flat.min(axis=0) == starts).all()
            assert (flat.max(axis=0) == starts + counts - 1).all()
        if spec.kind == "discrete":
            assert set(np.unique(many[key])) == set(range(spec.start, spec.start + spec.count))


def test_the_average_of_the_parameters_acts_where_it_is_asked_for(tmp_path):
    _, parameters = save(tmp_path / "plain", GaussianActorCritic, BOX)
    average = {AVERAGE: np.zeros_like(parameters)}
    save(tmp_path / "averaged", GaussianActorCritic, BOX, average)
    state = np.array([2.0, 0.0, -1.0])
    assert not load_policy(tmp_path / "averaged", averaged=True).act(state).any()
    assert load_policy(tmp_path / "averaged").act(state).any()
    with pytest.raises(BadInput, match="average_decay"):
        load_policy(tmp_path / "plain", averaged=True)
