"""The task of docs/batched_tasks.md: words, varied masses, success; and other ways to act."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.rules import TaskRules
from rlinf_async.envs.seeding import episode_generator
from rlinf_async.execution import references
from rlinf_async.execution.spaces import ActionSpec, ArraySpec

PAGE = (Path(__file__).parents[2] / "docs" / "batched_tasks.md").read_text()
SLOTS = 4
SEEDS = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def puck(tmp_path_factory):
    """The module of the page, beside its model."""
    folder = tmp_path_factory.mktemp("puck")
    for kind, name in (("xml", "puck.xml"), ("python", "puck_task.py")):
        (folder / name).write_text(re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[1])
    spec = importlib.util.spec_from_file_location("puck_task", folder / "puck_task.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["puck_task"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["puck_task"]


def open_cell(puck, **changes) -> BatchedCell:
    return BatchedCell(dataclasses.replace(puck.PUCK, **changes), SLOTS, dtype="float64")


def same_seed(slot: int) -> int:
    return SEEDS[slot]


def actions_of(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, SLOTS, 2)).astype(np.float32)


def towards_goal(puck, cell: BatchedCell) -> np.ndarray:
    error = puck.GOALS[cell.rules.side] - cell.sims.qpos
    return (3 * error - cell.sims.qvel).astype(np.float32)


def test_it_travels_and_declares_its_observations(puck) -> None:
    reference = references.describe(puck.PUCK, where="test")
    about = describe_env(reference)
    told = [(o["name"], tuple(o["shape"]), o["dtype"]) for o in about["spaces"]["observation"]]
    assert told == [("state", (4,), "float32"), ("instruction", (10,), "uint8")]
    assert (about["path"], about["time_limit"]) == ("batched", 200)
    first = make_cell(reference, SLOTS).reset(SEEDS)
    assert {name: rows.dtype.name for name, rows in first.items()} == {
        "state": "float32",
        "instruction": "uint8",
    }
    words = {bytes(row).decode().strip() for row in first["instruction"]}
    assert words <= {"push left", "push right", "push back"}


def test_it_can_be_solved_and_says_so(puck) -> None:
    cell = open_cell(puck)
    cell.reset(SEEDS)
    ended = np.zeros(SLOTS, np.bool_)
    for _ in range(150):
        result = cell.step(
            towards_goal(puck, cell), lambda slot: None, slots=np.flatnonzero(~ended)
        )
        np.testing.assert_array_equal(result.success, result.terminated)
        ended |= result.terminated
        assert not result.truncated.any()
        if ended.all():
            return
    pytest.fail("no success")


def test_an_episode_follows_from_its_seed_alone(puck) -> None:
    cell, other = open_cell(puck), open_cell(puck)
    cell.reset(SEEDS)
    masses = cell.rules.mass[:, cell.rules.puck].copy()
    assert len(set(masses.tolist())) == SLOTS
    assert masses.tolist() == [episode_generator(seed).uniform(0.3, 0.9) for seed in SEEDS]
    other.reset(SEEDS[::-1])
    for actions in actions_of(5):
        other.step(actions, same_seed)
    again = other.begin(np.arange(SLOTS), SEEDS)["state"]
    np.testing.assert_array_equal(again, cell.observe(None)["state"])
    np.testing.assert_array_equal(other.rules.mass, cell.rules.mass)


def test_a_varied_mass_moves_as_a_model_of_that_mass(puck) -> None:
    cell = open_cell(puck)
    start = cell.reset(SEEDS)["state"]
    actions = 0.3 * actions_of(20)  # too weak to reach a goal
    results = [cell.step(action, same_seed) for action in actions]
    assert not any(result.finished.size for result in results)
    for slot in range(SLOTS):
        model = mujoco.MjModel.from_xml_path(puck.PUCK.model_file)
        data = mujoco.MjData(model)
        model.body_mass[cell.rules.puck] = cell.rules.mass[slot, cell.rules.puck]
        mujoco.mj_setConst(model, data)
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = start[slot, :2], start[slot, 2:]
        mujoco.mj_forward(model, data)
        for t, action in enumerate(actions):
            data.ctrl[:] = action[slot]
            mujoco.mj_step(model, data, nstep=5)
            np.testing.assert_array_equal(
                results[t].observation["state"][slot], [*data.qpos, *data.qvel]
            )


def test_it_continues_bit_identically_with_its_masses_and_memory(puck) -> None:
    cell = open_cell(puck, time_limit=12)
    cell.reset([1, 2, 3, 4])
    for actions in actions_of(17):
        cell.step(actions, same_seed)
    state = cell.save_state()
    assert "model/body_mass" in state
    for other in (cell, open_cell(puck, time_limit=12)):
        seen = []
        other.restore_state(state)
        for actions in actions_of(30, seed=1):
            result = other.step(actions, lambda slot: slot + 20)
            seen.append(
                (result.observation["state"], result.observation["instruction"], result.reward)
            )
        seen.append((other.rules.mass.copy(), other.rules.held.copy(), other.rules.side.copy()))
        if other is cell:
            want = seen
    for ours, theirs in zip(seen, want, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, two)


def test_memory_of_slots_that_rest_stays(puck) -> None:
    cell = open_cell(puck)
    cell.reset(SEEDS)
    cell.sims.qpos[...] = puck.GOALS[cell.rules.side]
    still = np.zeros((SLOTS, 2), np.float32)
    for count in (1, 2):
        result = cell.step(still, same_seed, slots=np.array([1, 3]))
        assert cell.rules.held.tolist() == [0, count, 0, count]
        assert result.reward[[0, 2]].tolist() == [0, 0]
        assert result.success.tolist() == [False] * SLOTS


class WatchRules(TaskRules):
    """Pushes by numbered directions; tells where the puck's body is said to be."""

    def __init__(self, sims) -> None:
        super().__init__(sims)
        self.observation = (ArraySpec(name="place", shape=(2,), dtype="float32"),)
        self.place = sims.derived("xpos", sims.model.body("puck").id)

    def action_spec(self) -> ActionSpec:
        return ActionSpec(kind="discrete", shape=(), dtype="int64", count=4, start=1)

    def act(self, action, slots) -> None:
        pushes = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[action - 1]
        chosen = slice(None) if slots is None else slots
        self.sims.ctrl[chosen] = pushes[chosen]

    def start(self, slots, rngs) -> None:
        self.sims.qpos[slots] = 0.0

    def judge(self, action, outcome, slots) -> None:
        outcome.truncated[...] = self.sims.qpos[:, 0] > 0.01

    def observe(self, out, slots) -> None:
        out["place"][...] = self.place[:, :2]


@pytest.mark.parametrize("fresh", [True, False])
def test_other_actions_and_derived_fields_of_the_new_state(puck, fresh) -> None:
    cell = open_cell(puck, rules=WatchRules, fresh=fresh, time_limit=None)
    cell.reset(SEEDS)
    for _ in range(40):
        result = cell.step(np.arange(SLOTS), lambda slot: None, slots=np.arange(1, SLOTS))
    positions = cell.sims.qpos
    assert (positions[1, 0] < 0, positions[2, 1] > 0, positions[3, 1] < 0) == (True,) * 3
    np.testing.assert_array_equal(positions[0], 0.0)
    assert np.array_equal(result.observation["place"], positions) == fresh
    while not result.truncated[0]:
        result = cell.step(np.zeros(SLOTS, np.int64), lambda slot: None)
    assert positions[0, 0] > 0.01
