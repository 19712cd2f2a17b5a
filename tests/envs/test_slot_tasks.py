"""Which task each slot runs is told by every kind of cell, through all that wraps it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.vector_adapter import VectorCell
from rlinf_async.envs.wrappers import ClipReward
from rlinf_async.execution.references import describe
from tests.fixtures.envs import CountEnv, TaskEnv


def of_set() -> Any:
    """A factory of environments whose tasks take turns, as suites have it."""
    numbers = iter(range(100))
    return lambda: TaskEnv(task_id=f"task-{next(numbers) % 2}")


def test_slots_of_a_set_run_different_tasks() -> None:
    cell = GymnasiumCell(of_set(), 3, name="Set")
    assert cell.tasks == ("task-0", "task-1", "task-0")
    plain = GymnasiumCell(CountEnv, 2, name="Count")
    assert plain.tasks == ("Count", "Count")


def test_a_vector_environment_tells_those_of_its_environments() -> None:
    vectors = functools.partial(TaskEnv, task_id="reach")

    def factory(num_envs: int) -> Any:
        return SyncVectorEnv([vectors] * (num_envs - 1) + [CountEnv])

    cell = VectorCell(factory, 3, name="Many")
    assert cell.tasks == ("reach", "reach", "Many")
    cell.close()


@pytest.mark.parametrize("backend", ["loop", "threads", "processes"])
def test_every_back_end_and_wrapper_hands_them_through(backend: str) -> None:
    request = {
        "env": describe(functools.partial(TaskEnv, task_id="reach"), where="test"),
        "wrappers": [describe(ClipReward(low=-1.0, high=1.0), where="test")],
        "time_limit": 5,
        "backend": backend,
    }
    cell = make_cell(request, 3)
    assert cell.tasks == ("reach",) * 3
    cell.close()


def test_a_batched_task_is_named_in_every_slot() -> None:
    cell = make_cell({"env": "Hopper-v5"}, 2)
    assert cell.tasks == ("Hopper-v5", "Hopper-v5")
