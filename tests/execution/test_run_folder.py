"""Run folders are private, never mixed, and never lost."""

import stat
from datetime import datetime
from pathlib import Path

import orjson
import pytest

from rlinf_async.errors import BadInput
from rlinf_async.execution import logs
from rlinf_async.execution.run_folder import RunFolder

STARTED = datetime(2031, 2, 3, 4, 5, 6)
SCRIPT = Path("/somewhere/ppo.py")


def create(path: Path | None = None) -> RunFolder:
    return RunFolder.create(path, script=SCRIPT, started=STARTED)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_default_folder_is_named_after_script_and_start_and_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [create().path.relative_to(tmp_path).as_posix() for _ in range(3)]
    first = "runs/ppo-20310203-040506"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_folder_and_logs_are_private(tmp_path):
    folder = create(tmp_path / "a" / "b")
    assert folder.path == tmp_path / "a" / "b"
    assert mode(folder.path) == mode(folder.logs) == 0o700


def test_empty_folder_is_taken_and_made_private(tmp_path):
    (tmp_path / "r").mkdir(mode=0o755)
    assert mode(create(tmp_path / "r").path) == 0o700


def test_folder_with_content_and_file_are_refused(tmp_path):
    create(tmp_path / "r")
    with pytest.raises(BadInput, match="exists and is not empty"):
        create(tmp_path / "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        create(tmp_path / "file")


def test_folder_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=rf"File exists: {tmp_path}/file; .* with --run-dir"):
        create(tmp_path / "file" / "below")
    with pytest.raises(BadInput, match="cannot make a run folder at /proc/run"):
        create(Path("/proc/run"))


def test_discard_removes_what_only_describes_and_keeps_results(tmp_path):
    folder = create(tmp_path / "r")
    folder.describe({"path": Path("x"), "seed": 1})
    assert orjson.loads(folder.description.read_bytes()) == {"path": "x", "seed": 1}
    folder.metrics.write_text("{}\n")
    folder.discard()
    assert folder.metrics.exists()
    folder.metrics.unlink()
    folder.discard()
    assert not folder.path.exists()


def test_events_are_json_lines_with_process_and_bound_context(tmp_path):
    log = logs.get_logger()
    path = logs.configure("env-0", tmp_path)
    assert mode(path) == 0o600
    logs.bind(worker="w")
    log.info("segment_collected", took_s=0.5, path=Path("p"))
    log.debug("not_shown")
    # A cached logger follows a later configuration.
    logs.configure("env-1", tmp_path)
    log.warning("late")
    first = orjson.loads(path.read_bytes())
    assert first.items() >= {
        "event": "segment_collected", "level": "info", "process": "env-0", "worker": "w",
        "took_s": 0.5, "path": "p",
    }.items()  # fmt: skip
    assert orjson.loads((tmp_path / "env-1.jsonl").read_bytes())["process"] == "env-1"
