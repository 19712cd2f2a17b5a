"""Off-policy runs: the same bits in every mode, and a checkpoint that acts."""

import json

import numpy as np
import pytest

import rlinf_async
from rlinf_async.envs.registry import describe_env
from rlinf_async.execution.checkpoint import read_checkpoint
from rlinf_async.execution.spaces import Spaces
from rlinf_async.recording import RecordingWriter
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
    case = ("--max-lag", str(max_lag), "--prioritised", "0.6", "--save-replay")
    found, remembered = [], []
    for mode in (("serial",), ("disaggregated", "--hosts", "1")):
        run = launch(SAC, *SMALL, *case, "--mode", *mode)
        assert run.finish() == 0, run.stderr
        found.append(read_checkpoint(run.run_dir / "checkpoint"))
        with np.load(run.run_dir / "checkpoint" / "replay.npz") as arrays:
            remembered.append({name: values.tobytes() for name, values in arrays.items()})
    assert remembered[0] == remembered[1]
    assert begins_with_steps(launch, run.run_dir / "checkpoint", case) > 4 * 8
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


def begins_with_steps(launch, checkpoint, case) -> float:
    """Steps in the replay after the first batch of a run that begins with `checkpoint`."""
    again = ("--mode", "serial", "--iterations", "1", "--init-from", str(checkpoint))
    run = launch(SAC, *SMALL, *case, *again)
    assert run.finish() == 0, run.stderr
    return json.loads((run.run_dir / "metrics.jsonl").read_text())["train/replay_steps"]


def test_a_replay_that_does_not_fit_is_refused_with_its_size(launch):
    run = launch(SAC, *SMALL, "--capacity", "1000000000000", "--mode", "serial")
    assert run.finish() != 0
    assert "row pool 'replay'" in run.stderr
    assert "bytes free" in run.stderr


def pendulum_demonstrations(folder):
    """Two recorded episodes of InvertedPendulum, of which one ends and one is cut off."""
    spaces = Spaces.from_json(describe_env("InvertedPendulum-v5")["spaces"])
    writer = RecordingWriter(folder, spaces=spaces, env="InvertedPendulum-v5")
    rng = np.random.default_rng(0)
    name = spaces.observation[0].name
    for number in range(2):
        episode = writer.open(number, seed=number)
        for t in range(20):
            action = rng.uniform(-3, 3, 1).astype(np.float32)
            episode.add(
                {name: rng.normal(size=4).astype(np.float32)},
                np.arctanh(action / 3),
                action,
                reward=1.0,
                terminated=t == 19 and number == 0,
                truncated=t == 19 and number == 1,
                success=False,
                version=0,
            )
        episode.finish({name: rng.normal(size=4).astype(np.float32)})
    return folder


@pytest.mark.parametrize(
    ("example", "options"),
    [
        ("rlpd.py", ("--warmup", "20")),
        ("iql_offline.py", ()),
        pytest.param("td3.py", ("--warmup", "20"), marks=pytest.mark.slow),
        pytest.param("crossq.py", ("--warmup", "20"), marks=pytest.mark.slow),
    ],
)
def test_the_examples_run(launch, tmp_path, example, options):
    if example in ("rlpd.py", "iql_offline.py"):
        folder = pendulum_demonstrations(tmp_path / "demos")
        options = (*options, "--demonstrations", str(folder))
    small = ("--env-count", "2", "--horizon", "4", "--iterations", "4", "--updates", "2")
    run = launch(EXAMPLE.with_name(example), *small, "--hidden", "8", *options, "--mode", "serial")
    assert run.finish() == 0, run.stderr
    assert run.iterations() == 4
    rows = (run.run_dir / "metrics.jsonl").read_text()
    assert "critic_loss" in rows
