"""Off-policy runs: the same bits in every mode, and a checkpoint that acts."""

import numpy as np
import pytest

import rlinf_async
from rlinf_async.execution.checkpoint import read_checkpoint
from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process

SAC = EXAMPLE.parent / "sac_mujoco.py"
SMALL = (
    *("--env", "InvertedPendulum-v5", "--env-count", "4", "--cell", "3", "--horizon", "8"),
    *("--iterations", "6", "--warmup", "60", "--minibatch", "16", "--hidden", "16", "16"),
    *("--update-to-data", "0.25", "--capacity", "400", "--n-step", "2"),
)


@pytest.mark.parametrize("max_lag", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_every_mode_learns_the_same_bits(launch, max_lag):
    case = ("--max-lag", str(max_lag), "--prioritised", "0.6")
    found = []
    for mode in (("serial",), ("disaggregated", "--hosts", "1")):
        run = launch(SAC, *SMALL, *case, "--mode", *mode)
        assert run.finish() == 0, run.stderr
        found.append(read_checkpoint(run.run_dir / "checkpoint"))
    assert found[0].parameters.tobytes() == found[1].parameters.tobytes()
    assert found[0].parameters[-1] == 0.0
    assert {"actor/adam/mean", "critics/parameters", "critics/target"} <= set(found[0].optimizer)
    for name, values in found[0].optimizer.items():
        assert values.tobytes() == found[1].optimizer[name].tobytes(), name
    policy = rlinf_async.load_policy(run.run_dir / "checkpoint")
    action = policy.act(np.zeros((5, 4), np.float32))
    assert action.shape == (5, 1)
    assert (np.abs(action) <= 3.0).all()
    assert not np.array_equal(action, policy.act(np.zeros((5, 4)), deterministic=False))


def test_a_replay_that_does_not_fit_is_refused_with_its_size(launch):
    run = launch(SAC, *SMALL, "--capacity", "1000000000000", "--mode", "serial")
    assert run.finish() != 0
    assert "row pool 'replay'" in run.stderr
    assert "bytes free" in run.stderr
