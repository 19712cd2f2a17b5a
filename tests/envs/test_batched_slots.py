"""Slots of a batched cell on their own: stepped apart, in chunks, retired, begun again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.tasks import BATCHED_IDS, batched_task
from tests.fixtures.seeds import next_seed

SLOTS = 3


def open_cell(env_id: str, slots: int = SLOTS, *, time_limit: int = 9) -> BatchedCell:
    """A cell of 64-bit observations whose episodes are short."""
    task = dataclasses.replace(batched_task(env_id), time_limit=time_limit)
    return BatchedCell(task, slots, dtype="float64")


def actions_of(cell: BatchedCell, *lead: int, seed: int = 0) -> np.ndarray:
    spec = cell.spaces.action
    rng = np.random.default_rng(seed)
    return rng.uniform(spec.low, spec.high, (*lead, cell.slots, *spec.shape)).astype(np.float32)


class Alone:
    """Each slot of a cell as a cell of its own, stepped one step at a time."""

    def __init__(self, env_id: str, seeds: list[int], **settings: int) -> None:
        self.cells = [open_cell(env_id, 1, **settings) for _ in seeds]
        self.states = [
            cell.reset([seed])["state"][0] for cell, seed in zip(self.cells, seeds, strict=True)
        ]

    def step(self, slot: int, action: np.ndarray, next_seed):
        result = self.cells[slot].step(action[np.newaxis], lambda _: next_seed(slot))
        self.states[slot] = result.observation["state"][0]
        return result


@pytest.mark.parametrize("env_id", BATCHED_IDS)
def test_slots_stepped_apart_have_the_numbers_of_slots_alone(env_id) -> None:
    cell, alone = open_cell(env_id), Alone(env_id, [4, 5, 6])
    before = cell.reset([4, 5, 6])["state"]
    rng = np.random.default_rng(1)
    for t, actions in enumerate(actions_of(cell, 30)):
        chosen = np.flatnonzero(rng.random(SLOTS) < 0.6)
        asked: list[int] = []

        def next_seed(slot: int, t: int = t, asked: list[int] = asked) -> int:
            asked.append(slot)
            return 100 * t + slot

        got = cell.step(actions, next_seed, slots=chosen)
        assert asked == got.finished.tolist()
        for slot in range(SLOTS):
            if slot not in chosen:
                assert (got.reward[slot], got.terminated[slot], got.truncated[slot]) == (0, 0, 0)
                np.testing.assert_array_equal(got.observation["state"][slot], before[slot])
                continue
            want = alone.step(slot, actions[slot], lambda s, t=t: 100 * t + s)
            assert got.reward[slot] == want.reward[0]
            assert got.terminated[slot] == want.terminated[0]
            assert got.truncated[slot] == want.truncated[0]
            np.testing.assert_array_equal(got.observation["state"][slot], alone.states[slot])
            if slot in got.finished:
                row = got.finished.tolist().index(slot)
                np.testing.assert_array_equal(
                    got.final_observation["state"][row], want.final_observation["state"][0]
                )
        before = got.observation["state"].copy()


@pytest.mark.parametrize("env_id", BATCHED_IDS)
def test_a_chunk_is_its_single_steps_up_to_the_end_of_the_episode(env_id) -> None:
    cell, alone = open_cell(env_id, time_limit=7), Alone(env_id, [4, 5, 6], time_limit=7)
    cell.reset([4, 5, 6])
    ends = 0
    for t, actions in enumerate(np.swapaxes(actions_of(cell, 12, 5), 1, 2)):
        got = cell.chunk_step(actions, lambda slot, t=t: 100 * t + slot)
        for slot in range(SLOTS):
            earned, last = [], None
            for action in actions[slot]:
                last = alone.step(slot, action, lambda s, t=t: 100 * t + s)
                earned.append(last.reward[0])
                if last.finished.size:
                    break
            assert got.executed[slot] == len(earned)
            assert got.reward[slot].tolist() == earned + [0.0] * (5 - len(earned))
            assert (got.terminated[slot], got.truncated[slot]) == (
                last.terminated[0],
                last.truncated[0],
            )
            np.testing.assert_array_equal(got.observation["state"][slot], alone.states[slot])
            if last.finished.size:
                row = got.finished.tolist().index(slot)
                np.testing.assert_array_equal(
                    got.final_observation["state"][row], last.final_observation["state"][0]
                )
                ends += 1
    assert ends >= SLOTS * 12 * 5 // (7 + 5)


def test_a_chunk_observes_once_and_where_an_episode_ends(monkeypatch) -> None:
    cell = open_cell("HalfCheetah-v5", time_limit=7)
    cell.reset([1, 2, 3])
    seen = []
    observe = cell.rules.observe

    def counted(out, slots):
        seen.append(None if slots is None else slots.tolist())
        observe(out, slots)

    monkeypatch.setattr(cell.rules, "observe", counted)
    actions = np.swapaxes(actions_of(cell, 2, 5), 1, 2)
    cell.chunk_step(actions[0], next_seed)
    assert seen == [None]
    cell.chunk_step(actions[1], next_seed)
    # the last observations of the episodes, the first of the next, all at the chunk's end
    assert seen == [None, [0, 1, 2], [0, 1, 2], None]


def test_a_retired_slot_is_not_simulated_until_it_is_begun() -> None:
    cell = open_cell("Ant-v5", time_limit=3)
    cell.reset([1, 2, 3])
    actions = actions_of(cell, 20)
    for t in range(3):
        result = cell.step(actions[t], lambda slot: None if slot == 1 else slot)
    assert result.truncated.all()
    last = result.final_observation["state"][1]
    physics = cell.sims.batch.state[1].copy()
    for t in range(3, 9):
        result = cell.step(actions[t], next_seed)
        np.testing.assert_array_equal(result.observation["state"][1], last)
        assert (result.reward[1], result.terminated[1], result.truncated[1]) == (0, 0, 0)
        assert 1 not in result.finished
    np.testing.assert_array_equal(cell.sims.batch.state[1], physics)
    begun = cell.begin(np.array([1]), [77])["state"]
    np.testing.assert_array_equal(begun, open_cell("Ant-v5", 1).reset([77])["state"])
    chunk = cell.chunk_step(np.stack([actions[9], actions[10]], axis=1), next_seed)
    assert chunk.executed.tolist() == [2, 2, 2]


def test_a_slot_may_retire_inside_a_chunk() -> None:
    cell = open_cell("HalfCheetah-v5", time_limit=3)
    cell.begin(np.array([0, 2]), [1, 3])
    actions = np.swapaxes(actions_of(cell, 5), 0, 1)
    result = cell.chunk_step(actions, lambda slot: None)
    assert result.executed.tolist() == [3, 0, 3]
    assert result.finished.tolist() == [0, 2]
    np.testing.assert_array_equal(
        result.observation["state"][[0, 2]], result.final_observation["state"]
    )


def test_slots_outside_of_an_episode_are_refused() -> None:
    cell = open_cell("Hopper-v5")
    actions = actions_of(cell)
    with pytest.raises(ValueError, match="no slot is within an episode"):
        cell.step(actions, next_seed)
    cell.begin(np.array([1]), [5])
    with pytest.raises(ValueError, match=r"slots \[0, 2\] are not within an episode"):
        cell.step(actions, next_seed, slots=np.arange(3))
    assert cell.step(actions, next_seed).reward.astype(bool).tolist() == [False, True, False]


def test_the_time_limit_counts_the_steps_of_each_slot() -> None:
    cell = open_cell("HalfCheetah-v5", time_limit=4)
    cell.reset([1, 2, 3])
    actions = actions_of(cell)
    ends = {0: [], 1: [], 2: []}
    for t in range(1, 13):
        chosen = np.flatnonzero([True, t % 2 == 0, t % 3 == 0])
        result = cell.step(actions, next_seed, slots=chosen)
        for slot in result.finished.tolist():
            ends[slot].append(t)
    assert ends == {0: [4, 8, 12], 1: [8], 2: [12]}
