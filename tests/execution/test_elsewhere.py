"""Hosts in another interpreter, over real sockets; its suite is a stand-in of a few lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_async.hardware import interpreters

pytestmark = pytest.mark.process

LENT = (
    *("numpy", "numpy.libs", "zmq", "pyzmq.libs", "orjson", "structlog", "uvloop"),
    *("gymnasium", "cloudpickle", "farama_notifications", "typing_extensions.py"),
)

STAND_IN = """
import gymnasium, numpy as np


class Here(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        import sys
        assert "torch" not in sys.modules and sys.prefix.endswith("pusht"), sys.prefix
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


def make(*arguments, **options):
    return Here()


gymnasium.register("gym_pusht/PushT-v0", entry_point=make)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """An interpreter that takes itself for the suite `pusht`, with our packages but not torch."""
    monkeypatch.setenv(interpreters.VARIABLE, str(tmp_path))
    suite = interpreters.named("pusht")
    folder = tmp_path / "pusht"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    told = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    purelib = Path(told.stdout.strip())
    ours = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    for name in LENT:
        if (ours / name).exists():
            (purelib / name).symlink_to(ours / name)
    (purelib / "gym_pusht.py").write_text(STAND_IN)
    interpreters._make_importable(folder, str(python))
    marker = {"digest": suite.digest, "versions": {}}
    (folder / "installed.json").write_text(json.dumps(marker))
    return python


def test_environments_live_in_their_own_interpreter(launch, stand_in, monkeypatch):
    run = launch("elsewhere.py", "--env", "pusht/state", "--mode", "collocated")
    assert run.finish() == 0, run.stderr
    assert any(f"interpreter {stand_in}" in line for line in run.out), run.out
    assert run.iterations() == 2


def test_one_process_cannot_be_two_interpreters(launch, stand_in):
    run = launch("elsewhere.py", "--env", "pusht/state", "--mode", "serial")
    assert run.finish() == 2
    assert "lives in an interpreter of its own" in run.stderr
    assert "--mode collocated" in run.stderr


def test_a_policy_beside_environments_without_torch_is_refused_where_it_was_asked_for(
    launch, stand_in
):
    run = launch("elsewhere.py", "--env", "pusht/state", "--policy", "beside")
    assert run.finish() == 2
    assert "--policy: pusht/state lives in an interpreter of its own" in run.stderr
    assert "expected central; got beside; use --policy central, or leave the" in run.stderr


def test_an_unknown_task_and_a_missing_suite_are_refused(launch, stand_in):
    run = launch("elsewhere.py", "--env", "pusht/stat")
    assert run.finish() == 2
    assert "did you mean" in run.stderr or "state" in run.stderr
    run = launch("elsewhere.py", "--env", "metaworld/push-v3")
    assert run.finish() == 2
    assert "venvs install metaworld" in run.stderr


def test_evaluations_run_where_the_environments_live(launch, stand_in, tmp_path):
    training = launch("elsewhere.py", "--env", "pusht/state", "--time-limit", "4", "--evaluate")
    assert training.finish() == 0, training.stderr
    row = json.loads((training.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert (row["eval/return_mean"], row["eval/length_mean"]) == (4.0, 4.0)
    run = launch(training.run_dir, "--episodes", "3", "--json", "-", command="eval")
    assert run.finish() == 0, run.stderr
    told = json.loads("".join(run.out))
    assert told["env"] == "pusht/state"
    assert [episode["return"] for episode in told["episodes"]] == [4.0, 4.0, 4.0]
