"""`diagnose` on real runs: one whose environment falls asleep, and the record of a dead one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import orjson
import pytest

from rlinf_async.cli import diagnose
from rlinf_async.errors import BadInput
from rlinf_async.tracing.client import find_run
from tests.conftest import EXAMPLE
from tests.tracing.test_service import SMALL

FAULTS = Path(__file__).parents[2] / "tools" / "bench" / "scripts" / "planted_faults.py"


@pytest.mark.process
def test_a_sleeping_step_is_named_with_its_stack(launch, tmp_path, monkeypatch, capsys):
    mark = tmp_path / "mark"
    run = launch(FAULTS, "--fault", "sleeping_step", "--mark", str(mark), "--hosts", "1")
    monkeypatch.setattr("tempfile.tempdir", str(run.temporary))
    assert run.wait_until(mark.exists), run.stderr
    said = ""

    def named() -> bool:
        nonlocal said
        code = diagnose.command([run.run_dir.name])
        said = capsys.readouterr().out
        # Until the step has lasted long enough, the run is rightly called slow.
        return code == 1 and said.startswith("stuck")

    assert run.wait_until(named, 10.0), said
    assert said.startswith("stuck: an environment of host-0 has been in step ")
    assert "stacks of host-0:" in said
    assert "planted_faults.py" in said
    assert "coroutines of the controller:" in said
    assert "pack: " in said
    assert "the last minute:" in said
    assert "segments: " in said


@pytest.mark.process
def test_the_record_of_a_killed_worker_is_read(launch, capsys):
    run = launch(EXAMPLE, *SMALL, "--mode", "collocated", "--hosts", "1")
    assert run.wait_iterations(2), run.stderr
    os.kill(run.hosts()["host-0"], signal.SIGKILL)
    assert run.finish() == 1
    assert diagnose.command([str(run.run_dir)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("failed: the run ended in iteration ")
    assert "WorkerLost: worker host-0" in said
    assert "was killed by SIGKILL" in said


def test_unknown_arguments_and_runs_are_refused():
    with pytest.raises(BadInput, match="unknown argument '--loud'"):
        diagnose.command(["--loud"])
    with pytest.raises(BadInput, match="no run that goes on"):
        diagnose.command(["nothing-of-that-name"])


def ended(folder: Path, *log: dict[str, object]) -> Path:
    """A run folder as a run leaves it."""
    (folder / "logs").mkdir()
    (folder / "run.json").write_text("{}")
    rows = [{"iteration": 1, "time_s": 61.0, "env_steps": 2048, "return_mean": 7.25}]
    for name, lines in (("metrics.jsonl", rows), ("logs/controller.jsonl", log)):
        (folder / name).write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        ({"exit_code": 0}, 0, "finished: 1 iteration in 1:01, 2,048 environment steps"),
        ({"exit_code": 130, "error": "Interrupted(2)"}, 1, "failed: Interrupted(2), after 1 iter"),
    ],
)
def test_how_a_run_ended_is_read_from_its_folder(tmp_path, capsys, log, code, said):
    folder = ended(tmp_path, {"event": "run_ended", **log})
    assert diagnose.command([str(folder)]) == code
    assert capsys.readouterr().out.startswith(said)


def test_a_controller_that_was_killed_left_no_word_and_only_diagnose_looks_at_it(tmp_path, capsys):
    folder = ended(tmp_path, {"event": "plan"})
    assert diagnose.command([str(folder)]) == 1
    assert "ended without a word" in capsys.readouterr().out
    with pytest.raises(BadInput, match="has ended; `diagnose` says how"):
        find_run(str(folder))
