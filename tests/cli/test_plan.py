"""`plan`: a script's own plan, what-if questions, simulated clusters, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlinf_async.cli import plan
from rlinf_async.cli.main import main
from rlinf_async.errors import BadInput
from rlinf_async.hardware.devices import available_cores
from tests.conftest import SCRIPTS

SWITCHING = SCRIPTS / "switching.py"


@pytest.mark.process
def test_a_script_is_planned_by_running_it_a_little(tmp_path):
    if len(available_cores()) < 2:
        pytest.skip("on one core there is nothing to choose from")
    options = ["--max-lag", "1", "--iterations", "500", "--no-pin", "--cell", "5"]
    command = [sys.executable, "-m", "rlinf_async", "plan", str(SWITCHING), *options]
    before = set(Path(tempfile.gettempdir()).glob("rlinf-plan-*"))
    done = subprocess.run(
        [*command, "--json", "--devices", "cpu:6", "--progress", "none"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    plans = {each["plan"]: each for each in document["candidates"]}
    assert set(plans) == {"collocated", "hybrid", "disaggregated"}
    assert document["chosen"] in plans
    assert plans["collocated"]["measured_s"] > 0
    for each in plans.values():
        assert each["low_s"] <= each["predicted_s"] <= each["high_s"]
        assert set(each["parts_s"]) == {"collect", "train", "rest"}
    assert document["memory_bytes"]["rows"] > 0
    assert all(size > 2**20 for size in document["memory_bytes"]["hosts"].values())
    assert {each["cores"] for each in document["what_if"]["candidates"]} == {5, 6}
    assert not list(tmp_path.iterdir())
    assert set(Path(tempfile.gettempdir()).glob("rlinf-plan-*")) == before


def test_a_simulated_cluster_shows_every_plan_and_says_that_it_is_simulated(tmp_path, capsys):
    file = tmp_path / "cluster.json"
    file.write_text('{"profile": "language", "devices": 16, "max_lag": 1}')
    assert main(["plan", "--cluster", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SIMULATED")
    assert "<- chosen" in shown
    assert main(["plan", f"--cluster={file}", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    fits = [each for each in document["candidates"] if not each["refused"]]
    assert document["chosen"] in {each["plan"] for each in fits}
    best = min(each["simulated_s"] for each in fits if each["simulated_s"])
    chosen = next(each for each in fits if each["plan"] == document["chosen"])
    assert chosen["simulated_s"] == best


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"profil": "flat"}', "unknown key 'profil'.*did you mean 'profile'"),
        ('{"profile": "flta"}', "unknown profile 'flta'.*did you mean 'flat'"),
        ('{"profile": "flat", "devices": 0}', "devices; expected an integer from 1"),
        ("[1]", "holds no object"),
        ("{", "cannot be read"),
    ],
)
def test_a_cluster_that_is_none_is_refused(tmp_path, text, message):
    file = tmp_path / "cluster.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=message):
        plan.command(["--cluster", str(file)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-lag", "1"], "before the script"),
        (["missing.py"], "missing.py"),
        ([str(SWITCHING), "--devices", "cpu:none"], "no number of cores"),
        ([str(SWITCHING), "--cluster"], "has no value"),
        ([str(SWITCHING), "--cluster", "x"], "goes without"),
        ([str(SWITCHING), "--itrations", "3"], "--iterations"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, message, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(BadInput, match=message):
        plan.command(arguments)


def test_it_explains_itself(capsys):
    assert main(["plan", "--help"]) == 0
    assert "--cluster FILE" in capsys.readouterr().out
