"""Each suite in its own interpreter, through our cells: spaces, seeds, and no torch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async.envs.suites import SUITES, is_suite_id, suite_factory
from rlinf_async.errors import BadInput
from rlinf_async.hardware.interpreters import installed, suites
from tools.bench.processes import MarkedRun

CASES = [
    "metaworld/push-v3",
    "metaworld/MT10",
    "robotics/FetchPickAndPlace-v4",
    "robotics/AdroitHandDoor-v1",
    "robotics/FrankaKitchen-v1",
    "robotics/PointMaze_UMaze-v3",
    "dm_control/cheetah-run",
    "dm_control/reacher-easy",
    "pusht/state",
    "pusht/pixels",
    "robosuite/Lift",
    "robosuite/Door",
    "robosuite/Stack",
]
TRIED = """
import sys, json, hashlib, time
import numpy as np
from rlinf_async.envs.registry import make_cell, describe_env

env = sys.argv[1]

def played(seeds):
    cell = make_cell(env, 2)
    seen = [cell.reset(seeds)]
    rng = np.random.default_rng(0)
    action = cell.spaces.action
    rewards = []
    start = time.process_time()
    for _ in range(12):
        result = cell.step(rng.uniform(-1, 1, (2, *action.shape)).astype("float32"), lambda s: 9)
        seen.append(result.observation)
        rewards.append(result.reward.tolist())
    took = time.process_time() - start
    cell.close()
    digest = hashlib.sha256()
    for each in seen:
        for name in sorted(each):
            digest.update(np.ascontiguousarray(each[name]).tobytes())
    return digest.hexdigest(), rewards, 24 / took

first, again, other = played([1, 2]), played([1, 2]), played([3, 4])
spaces = describe_env(env)["spaces"]
print(json.dumps({
    "names": [o["name"] for o in spaces["observation"]], "same": first[:2] == again[:2],
    "differ": first[0] != other[0], "per_s": first[2], "torch": "torch" in sys.modules,
}))
"""


def tried(env: str) -> dict[str, Any]:
    """What a cell of `env` does in its suite's interpreter; skips where that is missing."""
    suite = suites()[env.partition("/")[0]]
    found = installed(suite)
    if found is None or not found.current:
        pytest.skip(f"needs `python -m rlinf_async venvs install {suite.name}`")
    done = subprocess.run(
        [found.python, "-c", TRIED, env],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("env", CASES)
def test_a_suite_s_task_follows_from_its_seeds(env: str) -> None:
    told = tried(env)
    assert told["same"]
    assert told["differ"]
    assert not told["torch"]
    print(f"{env}: {told['per_s']:.0f} steps/s, {told['names']}")


def test_ids_with_a_suite_s_name_in_front_are_a_suite_s() -> None:
    assert all(is_suite_id(f"{suite}/task") for suite in SUITES)
    assert not is_suite_id("ALE/Pong-v5")
    assert not is_suite_id("metaworld")


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_that_is_not_in_this_interpreter_says_how_to_get_it(suite: str) -> None:
    how = f"venvs install {suite}" if suite in suites() else "by hand"
    with pytest.raises(BadInput, match=f"not installed.*{how}"):
        suite_factory(f"{suite}/task", 0)


def test_instructions_say_what_to_do() -> None:
    from rlinf_async.envs.suites.metaworld import instruction_of

    assert instruction_of("drawer-open-v3") == "open the drawer"
    assert instruction_of("push-v3") == "push the puck to the goal"


@pytest.mark.slow
@pytest.mark.process
def test_one_run_holds_two_versions_of_mujoco_at_the_same_time(
    launch: Callable[..., MarkedRun],
) -> None:
    found = installed(suites()["metaworld"])
    if found is None or not found.current:
        pytest.skip("needs `python -m rlinf_async venvs install metaworld`")
    run = launch("two_mujocos.py")
    assert run.finish() == 0, run.stderr
    mapped = dict(line.split()[1:] for line in run.out if line.startswith("mapped host-0 "))
    mapped |= dict(line.split()[1:] for line in run.out if line.startswith("mapped watcher-0 "))
    assert mapped == {"host-0": "libmujoco.so.3.3.0", "watcher-0": "libmujoco.so.4.0.0"}
