"""Values that cannot be learned from are caught in batched cells too, and only where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.checks import ValueChecks, all_finite
from rlinf_async.envs.contract import EnvMismatch
from rlinf_async.envs.guarded import GuardedCell
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.request import EnvRequest
from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.tasks.hopper import TASK, HopperRules
from rlinf_async.errors import BadInput
from rlinf_async.execution import references
from rlinf_async.hardware import activity
from tests.fixtures.seeds import next_seed

SLOTS = 3


class FaultyHopper(HopperRules):
    """Slot 1 earns NaN in its third step, or slot 2 observes infinity in it."""

    faulty = "reward"

    def __init__(self, sims: Any) -> None:
        super().__init__(sims)
        self.steps = 0

    def judge(self, action: Any, outcome: Any, slots: Any) -> None:
        super().judge(action, outcome, slots)
        self.steps += 1
        if self.steps == 3 and self.faulty == "reward":
            outcome.reward[1] = np.nan
        if self.steps == 3 and self.faulty == "itself":
            self.seen = [str(each) for each in activity.current().doing()]
            raise LookupError("lost its way")

    def observe(self, out: Any, slots: Any) -> None:
        super().observe(out, slots)
        if self.steps == 3 and self.faulty == "observation":
            out["state"][2, 4] = np.inf


class FarHopper(FaultyHopper):
    faulty = "observation"


class LostHopper(FaultyHopper):
    faulty = "itself"


FAULTY = {
    "itself": replace(TASK, name="Faulty", rules=LostHopper),
    "reward": replace(TASK, name="Faulty", rules=FaultyHopper),
    "observation": replace(TASK, name="Faulty", rules=FarHopper),
}


def cell_of(task: BatchedTask, *, checks: bool = True) -> Any:
    described = references.describe(task, where="test")
    request = EnvRequest(env=described, checks=checks).to_json()
    cell = make_cell(request, SLOTS, first_slot=10)
    cell.reset(range(SLOTS))
    return cell


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("reward", "Faulty, slot 11: reward: expected a finite number; got nan"),
        ("observation", r"Faulty, slot 12: observation 'state': .* got inf at \[4\]"),
    ],
)
def test_batched_tasks_are_checked_with_key_and_slot(where, message) -> None:
    actions = np.zeros((SLOTS, 3), np.float32)
    cell = cell_of(FAULTY[where])
    for _ in range(2):
        cell.step(actions, next_seed)
    with pytest.raises(EnvMismatch, match=message):
        cell.step(actions, next_seed)
    chunk = cell_of(FAULTY[where])
    with pytest.raises(EnvMismatch, match=message):
        chunk.chunk_step(np.stack([actions] * 3, axis=1), next_seed)


def test_an_error_in_a_batch_names_its_slots_and_how_far_they_were() -> None:
    actions, cell = np.zeros((SLOTS, 3), np.float32), cell_of(FAULTY["itself"])
    for _ in range(2):
        cell.step(actions, next_seed)
    with pytest.raises(LookupError, match="lost its way") as it:
        cell.step(actions, next_seed)
    where = "slots 10 to 12, at step 2 of the longest episode"
    assert it.value.__notes__ == [f"raised by step of Faulty, {where}"]
    together = "step of slots 10 to 12 together, at step 2 of the longest episode"
    assert cell.inner.rules.seen == [together]
    assert activity.current().doing() == []


def test_retired_slots_do_not_count_for_the_longest_episode() -> None:
    described = references.describe(replace(TASK, name="Short", time_limit=2), where="test")
    cell = make_cell(EnvRequest(env=described).to_json(), 2)
    cell.reset([1, 2])
    actions = np.zeros((2, 3), np.float32)
    for _ in range(2):
        cell.step(actions, lambda slot: 7 if slot else None)
    cell.step(actions, next_seed)
    assert cell.save_state()["guarded/length"].tolist() == [0, 1]
    cell.chunk_step(np.stack([actions] * 2, axis=1), lambda slot: 8)
    assert cell._length.tolist() == [0, 0]
    cell.begin(np.array([0]), [9])
    cell.step(actions, next_seed, slots=np.array([0]))
    assert cell._length.tolist() == [1, 0]


def test_checks_can_be_switched_off() -> None:
    cell = cell_of(FAULTY["reward"], checks=False)
    assert isinstance(cell, BatchedCell)
    rewards = [cell.step(np.zeros((SLOTS, 3), np.float32), next_seed).reward for _ in range(3)]
    assert np.isnan(rewards[2]).tolist() == [False, True, False]


def test_a_guarded_cell_returns_what_the_cell_inside_returns() -> None:
    guarded, plain = make_cell("Hopper-v5", 2), BatchedCell(TASK, 2)
    assert isinstance(guarded, GuardedCell)
    for cell in (guarded, plain):
        cell.reset([1, 2])
    state = guarded.save_state()
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 2, 3)).astype(np.float32)
    for action in actions:
        ours, theirs = (cell.step(action, lambda slot: 5) for cell in (guarded, plain))
        np.testing.assert_array_equal(ours.observation["state"], theirs.observation["state"])
        np.testing.assert_array_equal(ours.reward, theirs.reward)
    np.testing.assert_array_equal(guarded.restore_state(state)["state"], state_of(plain))


def state_of(cell: Any) -> Any:
    return cell.reset([1, 2])["state"]


@pytest.mark.parametrize("size", [1, 1000, 70_000, 200_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, 1e30])
def test_one_value_among_many_decides(size, dtype, value) -> None:
    values = np.full(size, 1e25, dtype)
    values[size // 2] = value
    assert all_finite(values) == bool(np.isfinite(value))
    grid = np.full((4, 30_000), 1.0, dtype)[:, ::2]
    grid[2, 7] = value
    assert all_finite(grid) == bool(np.isfinite(value))


def test_integers_are_compared_with_their_range_and_others_are_not_looked_at() -> None:
    checks = ValueChecks("x", 4, {"a": (np.array([0, 1]), np.array([2, 3]))})
    slots = np.array([1, 2])
    checks.observations({"a": np.array([[0, 1], [2, 3]]), "b": np.array([[9], [9]])}, slots)
    with pytest.raises(EnvMismatch, match=r"slot 6: observation 'a': .* got 4 at \[1\]"):
        checks.observations({"a": np.array([[0, 1], [2, 4]])}, slots)


def vectors(num_envs: int) -> Any:
    raise AssertionError("never built")


@pytest.mark.parametrize("more", [{"wrappers": ["ClipReward"]}, {"time_limit": 3}])
def test_wrappers_of_single_environments_do_not_fit_vectors(more) -> None:
    described = references.describe(vectors, where="test")
    with pytest.raises(BadInput, match=r"it is a vector environment, .* inside the factory"):
        make_cell(EnvRequest(env=described, **more).to_json(), 2)
