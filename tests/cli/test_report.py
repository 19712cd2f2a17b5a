"""What a user reads when a run fails, and the run folder around it."""

import asyncio
import signal
import sys
from types import ModuleType

import orjson
import pytest

from rlinf_async.cli.main import main
from rlinf_async.cli.report import failure_text, root_cause
from rlinf_async.errors import (
    BadInput,
    Interrupted,
    PeerGone,
    StreamClosed,
    WorkerFailed,
    WorkerLost,
)

LOST = WorkerLost("env-0", stage="rollout", command="collect", exit_code=-9, stderr_tail="oh no")


def test_root_cause_is_the_first_error_that_no_other_explains():
    closed, gone = StreamClosed("segments: closed"), PeerGone("env-0 is gone")
    group = BaseExceptionGroup("all", [closed, ExceptionGroup("inner", [LOST, gone])])
    assert root_cause(group) == (LOST, [closed, gone])
    assert root_cause(ExceptionGroup("only", [closed, gone])) == (closed, [gone])


def test_first_cause_comes_first_and_the_rest_as_one_line_each(tmp_path):
    group = ExceptionGroup("all", [PeerGone("env-0 is gone\nsecond line"), LOST])
    text = failure_text(group, script=tmp_path / "s.py", logs=tmp_path / "logs")
    lines = text.splitlines()
    assert lines[0].startswith("error: worker env-0 (stage rollout) was killed by SIGKILL")
    assert "oh no" in text
    assert lines[-3:] == [
        "as a consequence:",
        "  - PeerGone: env-0 is gone",
        f"logs: {tmp_path / 'logs'}",
    ]


def test_notes_of_an_error_are_shown(tmp_path):
    failed = WorkerFailed(
        "env-0", stage="rollout", command="collect", kind="ValueError", message="bad",
        traceback="Traceback: here",
    )  # fmt: skip
    text = failure_text(failed, script=tmp_path / "s.py", logs=tmp_path)
    assert "ValueError: bad\ntraceback in the worker:\n    Traceback: here" in text


@pytest.fixture
def session(monkeypatch):
    """The engine's place: runs `main` as the engine does, but on a run that is None."""
    module = ModuleType("rlinf_async.execution.session")

    def execute(main_function, config, options, folder, display) -> None:
        asyncio.run(main_function(None, config))

    module.execute = execute
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_run_folder_describes_the_run_before_it_starts(session, write_script, good, capsys):
    path = write_script(good)
    assert main(["run", str(path), "--run-dir", "here", "--seed", "5", "--env-count", "9"]) == 0

    folder = path.parent / "here"
    described = orjson.loads((folder / "run.json").read_bytes())
    assert described["seed"] == described["engine"]["seed"] == 5
    assert described["config"] == {"env_count": 9, "max_lag": 0, "kind": "a"}
    assert described["engine"]["mode"] == "auto"
    assert described["versions"]["numpy"].startswith("2.")
    assert described["command"][:5] == ["python", "-m", "rlinf_async", "run", str(path)]
    assert described["machine"]["cores"] >= 1
    assert {"script_sha256", "git", "started", "folder"} <= described.keys()
    assert str(folder / "metrics.jsonl") in capsys.readouterr().out
    lines = (folder / "logs/controller.jsonl").read_bytes().splitlines()
    events = [orjson.loads(line) for line in lines]
    assert [each["event"] for each in events] == ["run_started", "run_ended"]
    assert {each["process"] for each in events} == {"controller"}


def test_commit_and_changes_of_the_scripts_repository_are_described(write_script, good):
    import subprocess

    from rlinf_async.cli.describe import git_state

    path = write_script(good)
    assert git_state(path.parent) is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(path.parent), *arguments], check=True)
    state = git_state(path.parent)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    path.write_text(good + "# changed\n")
    assert git_state(path.parent) == {"commit": state["commit"], "dirty": True}


def test_exception_in_main_is_exit_code_1_with_the_scripts_frames_only(
    session, write_script, good, capsys
):
    path = write_script(good.replace("cfg): ...", "cfg):\n    raise KeyError('mine')\n"))
    assert main(["run", str(path), "--run-dir", "here"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: the script failed\nTraceback")
    assert message.count('File "') == 1
    assert "KeyError: 'mine'" in message
    assert message.rstrip().endswith(f"logs: {path.parent / 'here' / 'logs'}")
    assert (path.parent / "here" / "run.json").exists()


def test_input_refused_later_leaves_no_run_folder(session, write_script, good, capsys):
    def refuse(*_) -> None:
        raise ExceptionGroup("g", [BadInput("run.envs", "no such environment")])

    session.execute = refuse
    path = write_script(good)
    assert main(["run", str(path), "--run-dir", "here"]) == 2
    assert capsys.readouterr().err == "error: run.envs: no such environment\n"
    assert not (path.parent / "here").exists()


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (Interrupted(signal.SIGINT), 130, "SIGINT"),
        (Interrupted(signal.SIGTERM), 143, "SIGTERM"),
        (KeyboardInterrupt(), 130, "SIGINT"),
        (BaseExceptionGroup("g", [StreamClosed("x"), Interrupted(signal.SIGINT)]), 130, "SIGINT"),
    ],
)
def test_signals_have_their_exit_codes(error, code, name, session, write_script, good, capsys):
    def interrupt(*_) -> None:
        raise error

    session.execute = interrupt
    assert main(["run", str(write_script(good))]) == code
    assert f"interrupted by {name}" in capsys.readouterr().err


def test_curve_is_drawn_from_what_was_written(session, write_script, good, capsys):
    pytest.importorskip("matplotlib")

    def work(main_function, config, options, folder, display) -> None:
        rows = [{"env_steps": n * 100, "env_steps_per_s": 10.0 * n} for n in range(1, 5)]
        rows[2]["return_mean"] = 3.0
        lines = b"".join(orjson.dumps(row) + b"\n" for row in rows) + b'{"env_steps": 5'
        folder.metrics.write_bytes(lines)

    session.execute = work
    path = write_script(good)
    assert main(["run", str(path), "--run-dir", "here"]) == 0
    curve = path.parent / "here" / "curve.png"
    assert curve.read_bytes().startswith(b"\x89PNG")
    assert str(curve) in capsys.readouterr().out
