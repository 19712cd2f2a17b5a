"""`ActorCritic` in whole runs: what environments are given, and what a checkpoint gives back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf_async import BadInput, load_policy
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.execution.checkpoint import read_checkpoint, write_checkpoint
from rlinf_async.execution.references import describe_factory
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models import ActorCritic
from rlinf_async.models.parameters import initial_parameters
from tests.fixtures.actions import BOX
from tests.fixtures.actor_critics import STATE, rows_of


@pytest.mark.process
def test_squashed_actions_reach_the_environment_within_its_bounds_in_every_mode(launch, tmp_path):
    found = []
    for mode in ("serial", "disaggregated"):
        run = launch("policies.py", "--mode", mode, "--max-lag", "1")
        assert run.finish() == 0, run.stderr
        found.append(read_checkpoint(run.run_dir / "checkpoint").parameters)
    np.testing.assert_array_equal(found[0], found[1])
    loaded = load_policy(run.run_dir / "checkpoint")
    rng = np.random.default_rng(0)
    observation = {
        "image": rng.integers(0, 256, (5, 16, 16, 3)).astype(np.uint8),
        "executed": rng.standard_normal((5, 2)).astype(np.float32),
    }
    action = loaded.act(observation)
    assert action.shape == (5, 2)
    assert action.dtype == np.float64
    np.testing.assert_allclose(action, [[0.0, 3.0]] * 5, atol=0.3)


@pytest.mark.process
def test_without_the_tanh_the_same_environment_sees_clipped_actions(launch):
    run = launch("policies.py", "--mode", "serial", "--no-squash")
    assert run.finish() == 1
    assert "was clipped" in run.stderr


def saved(folder, **options):
    """A checkpoint of an untrained `ActorCritic`, whose actor's weights are made larger."""
    spaces = Spaces(observation=(STATE,), action=BOX)
    options = {"spaces": spaces, "hidden": (8,), **options}
    policy, shapes, parameters = initial_parameters(lambda: ActorCritic(**options), seed=(0, 2))
    write_checkpoint(
        folder,
        parameters=parameters + 0.1,
        parameter_shapes=shapes,
        statistics=Statistics.initial(spaces).fields(),
        policy={
            "policy": describe_factory(ActorCritic, options, where="test"),
            "spaces": spaces.to_json(),
            "normalize_observations": False,
        },
        manifest={},
        optimizer={},
    )
    module = policy.to_module()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters + 0.1), module.parameters())
    return load_policy(folder), module


def test_a_loaded_squashed_policy_acts_within_the_bounds(tmp_path):
    loaded, module = saved(tmp_path / "saved", squash=True)
    rows = rows_of((STATE,), 6)["state"]
    with torch.inference_mode():
        u = module.mean({"state": torch.from_numpy(rows)}).numpy()
    np.testing.assert_allclose(loaded.act(rows), np.tanh(u), atol=1e-6)
    loaded.seed(0)
    sampled = loaded.act(rows, deterministic=False)
    assert (np.abs(sampled) < 1.0).all()


def test_a_loaded_policy_remembers_until_it_is_reset(tmp_path):
    loaded, module = saved(tmp_path / "saved", recurrent="gru", recurrent_units=5)
    rows = rows_of((STATE,), 4, 3)["state"]
    memory, expected = {"core": torch.zeros(3, 5)}, []
    with torch.inference_mode():
        for row in rows:
            action, memory = module.mean({"state": torch.from_numpy(row)}, memory)
            expected.append(np.clip(action.numpy(), -1, 1))
    for _ in range(2):
        for row, action in zip(rows, expected, strict=True):
            np.testing.assert_allclose(loaded.act(row), action, atol=1e-6)
        loaded.reset()
    loaded.act(rows[1])
    loaded.reset(np.array([True, False, False]))
    again = loaded.act(rows[0])
    np.testing.assert_allclose(again[0], expected[0][0], atol=1e-6)
    assert not np.allclose(again[1:], expected[0][1:], atol=1e-4)
    with pytest.raises(BadInput, match="another number of environments"):
        loaded.act(rows[0, :2])
