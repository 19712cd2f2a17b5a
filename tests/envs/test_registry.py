"""From ids and factories to cells, and what an unknown one is answered."""

from __future__ import annotations

import builtins
import functools
import subprocess
import sys
from typing import Any

import numpy as np
import orjson
import pytest

from rlinf_async.envs import describe_env, make_cell
from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from rlinf_async.errors import BadInput
from rlinf_async.execution import references
from rlinf_async.execution.spaces import Spaces
from tests.fixtures.envs import CountEnv, DieEnv
from tests.fixtures.seeds import next_seed


def reference(factory: Any, **keywords: Any) -> dict[str, Any]:
    value = functools.partial(factory, **keywords) if keywords else factory
    described: dict[str, Any] = references.describe(value, where="test")
    return described


def test_a_batched_id_takes_the_fast_path_and_any_other_the_adapter() -> None:
    assert isinstance(make_cell("Hopper-v5", 2).inner, BatchedCell)
    assert isinstance(make_cell("CartPole-v1", 2), GymnasiumCell)


def test_a_description_survives_orjson() -> None:
    for env, path, limit in (
        ("CartPole-v1", "gymnasium", 500),
        ("Pendulum-v1", "gymnasium", 200),
        ("Ant-v5", "batched", 1000),
        (reference(CountEnv, n=3), "gymnasium", None),
        (reference(CountEnv), "gymnasium", None),
    ):
        about = describe_env(env)
        assert (about["path"], about["time_limit"]) == (path, limit)
        read = orjson.loads(orjson.dumps(about))
        assert Spaces.from_json(read["spaces"]) == Spaces.from_json(about["spaces"])


def test_keywords_of_a_factory_reach_the_environment() -> None:
    cell = make_cell(reference(CountEnv, n=2, end="trunc"), 3)
    cell.reset([1, 2, 3])
    results = [cell.step(np.zeros(3, np.int64), next_seed) for _ in range(2)]
    assert [result.truncated.all() for result in results] == [False, True]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("HalfCheeta-v5", "'HalfCheetah-v5'"),
        ("halfcheetah-v5", "'HalfCheetah-v5'"),
        ("HalfCheetah", "'HalfCheetah-v5'"),
        ("Ant-v99", "'Ant-v5'"),
        ("Cartpole-v1", "'CartPole-v1'"),
    ],
)
def test_an_unknown_id_names_the_nearest(wrong, near) -> None:
    with pytest.raises(BadInput, match=f"no environment of this id.*did you mean.*{near}"):
        make_cell(wrong, 1)


def test_an_id_that_resembles_nothing_says_how_packages_are_imported() -> None:
    with pytest.raises(BadInput, match="'module:Name-v0'"):
        make_cell("zzzzzzzz", 1)


def test_a_registering_module_that_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match="module 'no_such_module' cannot be imported"):
        make_cell("no_such_module:Thing-v0", 1)


def test_a_missing_package_of_an_environment_is_named() -> None:
    with pytest.raises(BadInput, match=r"LunarLander-v3.*Box2D"):
        make_cell("LunarLander-v3", 1)


@pytest.mark.parametrize(
    ("env", "missing"),
    [("Hopper-v5", "mujoco"), ("Walker2d-v5", "mujoco"), ("CartPole-v1", "gymnasium")],
)
def test_a_missing_simulator_names_the_extra(env, missing, monkeypatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=rf"{missing}.*pip install 'rlinf_async\[mujoco\]'"):
        make_cell(env, 1)


def test_a_constructor_that_raises_is_carried() -> None:
    with pytest.raises(BadInput, match=r"'DieEnv'.*RuntimeError: died on purpose in __init__"):
        describe_env(reference(DieEnv, where="__init__"))


def test_a_reference_to_something_else_is_refused() -> None:
    with pytest.raises(BadInput, match=r"has no 'CuontEnv'.*'CountEnv'"):
        make_cell({"$name": "tests.fixtures.envs:CuontEnv"}, 1)
    with pytest.raises(BadInput, match=r"neither an id nor a factory; .*got a dict"):
        make_cell({"environment": "CartPole-v1"}, 1)
    with pytest.raises(BadInput, match="at least one slot"):
        make_cell("CartPole-v1", 0)


def test_a_gymnasium_task_on_mujoco_leaves_no_log_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cell = make_cell("gymnasium:InvertedDoublePendulum-v5", 1)
    cell.reset([1])
    cell._envs[0].unwrapped.data.qvel[:] = np.nan
    cell.step(np.zeros((1, 1), np.float32), next_seed)
    assert list(tmp_path.iterdir()) == []
    cell.close()


def test_importing_the_package_loads_no_simulator() -> None:
    code = (
        "import sys, rlinf_async.envs, rlinf_async.envs.registry, rlinf_async.envs.batched\n"
        "print([m for m in ('mujoco', 'gymnasium', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
