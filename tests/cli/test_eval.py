"""`eval` as a user meets it: real checkpoints, real worker processes."""

import functools
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from rlinf_async.cli.evaluate import _parse
from rlinf_async.cli.main import main
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe
from rlinf_async.recording import Recording
from tests.conftest import EXAMPLE, SCRIPTS
from tests.fixtures.envs import DieEnv
from tools.bench.processes import MarkedRun

TINY = ("--mode", "serial", "--iterations", "1", "--horizon", "8", "--minibatch", "16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder of InvertedPendulum-v5."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = ("--env", "InvertedPendulum-v5", "--env-count", "4", "--evaluate-every", "1", *TINY)
    with MarkedRun(EXAMPLE, options, run_dir=folder) as run:
        assert run.finish() == 0, run.stderr
    return folder


@pytest.mark.process
def test_the_record_is_the_same_for_any_number_of_slots_and_processes(launch, trained, tmp_path):
    records = []
    for number, split in enumerate((("--slots", "1"), ("--slots", "5", "--hosts", "2"))):
        path = tmp_path / f"{number}.json"
        options = ("--episodes", "6", "--sampled", "--json", str(path), *split)
        run = launch(trained, *options, command="eval")
        assert run.finish() == 0, run.stderr
        assert any(line.startswith("return:") for line in run.out)
        assert (run.run_dir / "evaluation.json").read_bytes() == path.read_bytes()
        records.append(path.read_bytes())
    assert records[0] == records[1]
    record = json.loads(records[0])
    assert record["checkpoint"] == str(trained / "checkpoint")
    assert (record["env"], record["version"]) == ("InvertedPendulum-v5", 1)
    assert (record["actions"], record["episode_count"]) == ("sampled", 6)
    assert len({episode["seed"] for episode in record["episodes"]}) == 6
    returns = [episode["return"] for episode in record["episodes"]]
    assert record["return"]["mean"] == pytest.approx(sum(returns) / 6)
    low, high = record["return"]["interval_95"]
    assert low < record["return"]["mean"] < high
    assert record["success_once"] is None


@pytest.mark.process
def test_the_command_scores_what_the_evaluation_in_training_scored(launch, trained):
    run = launch(trained, "--json", "-", command="eval")
    assert run.finish() == 0, run.stderr
    scored = json.loads("".join(run.out))
    (row,) = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert row["eval/version"] == scored["version"] == 1
    assert row["eval/return_mean"] == scored["return"]["mean"]
    assert row["eval/length_mean"] == scored["length"]["mean"]


@pytest.mark.process
def test_environment_and_policy_of_a_script_are_found_again_filmed_and_recorded(launch, tmp_path):
    av = pytest.importorskip("av")
    script = tmp_path / "evaluating.py"
    shutil.copy(SCRIPTS / "evaluating.py", script)
    training = launch(script, "--mode", "serial", "--iterations", "1", "--episode", "4")
    assert training.finish() == 0, training.stderr
    record = tmp_path / "episodes"
    run = launch(
        training.run_dir / "checkpoint",
        *("--episodes", "3", "--video", "--record", str(record), "--json", "-"),
        command="eval",
    )
    assert run.finish() == 0, run.stderr
    told = json.loads("".join(run.out))
    assert told["env"] == "FilmedEnv"
    assert [episode["length"] for episode in told["episodes"]] == [4, 4, 4]
    for number in range(3):
        path = run.run_dir / "videos" / f"episode-{number:04d}.mp4"
        with av.open(str(path)) as container:
            frames = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
        reds = [float(frame[..., 0].mean()) for frame in frames]
        assert reds == pytest.approx([0, 20, 40, 60, 80], abs=6)
    recording = Recording(record)
    assert (len(recording), recording.fps) == (3, 12.0)
    seeds = [episode.described["seed"] for episode in recording]
    assert seeds == [episode["seed"] for episode in told["episodes"]]


@pytest.mark.process
def test_another_environment_must_fit_the_policy(launch, trained):
    run = launch(trained, "--env", "Hopper-v5", command="eval")
    assert run.finish() == 2
    assert "environment 'Hopper-v5': its observations are not those of the policy" in run.stderr
    assert not run.run_dir.exists()


@pytest.mark.process
@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL"])
def test_an_evaluation_that_is_ended_leaves_nothing_and_says_why(launch, trained, end):
    run = launch(trained, "--episodes", "100000", "--hosts", "1", command="eval")
    assert run.wait_until(lambda: any("episodes" in line for _, line in run.err))
    if end == "SIGINT":
        run.interrupt()
        assert run.finish(10) == 130
        assert "interrupted by SIGINT" in run.stderr
    else:
        os.kill(run.hosts()["evaluate-0"], signal.SIGKILL)
        assert run.finish(10) == 1
        assert "worker evaluate-0 (stage evaluate) was killed by SIGKILL" in run.stderr
        assert "evaluate.advance" in run.stderr


def test_what_is_no_checkpoint_is_named(tmp_path, capsys):
    assert main(["eval", str(tmp_path / "nothing")]) == 2
    assert "there is no such checkpoint folder" in capsys.readouterr().err
    assert main(["eval"]) == 2
    assert "expected eval CHECKPOINT [options]" in capsys.readouterr().err
    assert main(["eval", str(tmp_path), "--episode", "3"]) == 2
    assert "did you mean '--episodes'" in capsys.readouterr().err


def altered(checkpoint: Path, target: Path, **manifest: object) -> Path:
    """A copy of a checkpoint whose manifest says something else."""
    shutil.copytree(checkpoint, target)
    path = target / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **manifest}))
    sizes = json.loads((target / "COMPLETE").read_text())
    sizes["manifest.json"] = path.stat().st_size
    (target / "COMPLETE").write_text(json.dumps(sizes))
    return target


def test_a_script_that_is_gone_is_named(tmp_path, trained, capsys):
    folder = altered(
        trained / "checkpoint",
        tmp_path / "checkpoint",
        env_request={"$name": "__rlinf_script__:Gone"},
        script=str(tmp_path / "gone.py"),
    )
    assert main(["eval", str(folder)]) == 2
    assert "gone.py; put it back" in capsys.readouterr().err


@pytest.mark.process
def test_an_environment_that_hangs_is_named_with_slot_and_step(launch, tmp_path):
    training = launch("evaluating.py", "--mode", "serial", "--iterations", "1")
    assert training.finish() == 0, training.stderr
    env = functools.partial(DieEnv, k=3, how="sleep", action="continuous")
    folder = altered(
        training.run_dir / "checkpoint",
        tmp_path / "checkpoint",
        env_request=describe(env, where="test"),
        env="DieEnv",
    )
    options = ("--episodes", "2", "--slots", "1", "--env-timeout-s", "0.5")
    run = launch(folder, *options, command="eval")
    assert run.finish(20) == 1
    assert "step 3" in run.stderr
    assert "slot 0" in run.stderr


def test_options_are_read_and_checked():
    given, options = _parse(["runs/x", "--episodes", "3", "--sampled", "--slots", "2"])
    assert str(given) == "runs/x"
    assert (options.episodes, options.sampled, options.slots, options.seed) == (3, True, 2, 0)
    with pytest.raises(BadInput, match="--slots: too small"):
        _parse(["runs/x", "--slots", "0"])
