"""Chunks made of single steps: where they stop, what they earn, what is observed."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_async.envs.chunks import Substep, chunk_step


class Counting:
    """Counts the steps of each slot's episode, which ends at `ends[slot]`; earns 10 * slot + step.

    It succeeds on even steps. Slots for which there is no seed keep their count.
    """

    def __init__(self, ends: list[int]) -> None:
        self.slots = len(ends)
        self.ends, self.steps = np.array(ends), np.zeros(len(ends), np.int64)
        self.simulated = np.zeros(len(ends), np.int64)
        self.observed, self.actions = 0, []

    def advance(self, actions, slots):
        chosen = np.arange(self.slots) if slots is None else slots
        self.actions.append(actions[chosen].copy())
        self.steps[chosen] += 1
        self.simulated[chosen] += 1
        reward, ended = np.zeros(self.slots), np.zeros(self.slots, np.bool_)
        reward[chosen] = 10 * chosen + self.steps[chosen]
        ended[chosen] = self.steps[chosen] == self.ends[chosen]
        success = np.zeros(self.slots, np.bool_)
        success[chosen] = self.steps[chosen] % 2 == 0
        return Substep(reward, ended, np.zeros(self.slots, np.bool_), success)

    def observe(self, slots):
        self.observed += 1
        return {"state": self.steps.copy() if slots is None else self.steps[slots]}

    def begin(self, slots, seeds):
        self.steps[slots] = np.array(seeds) * 100
        return {"state": self.steps[slots]}


def actions_of(slots: int, length: int) -> np.ndarray:
    return np.arange(slots * length, dtype=np.float32).reshape(slots, length)


def test_a_slot_that_ends_inside_a_chunk_stops_there() -> None:
    cell = Counting([1, 2, 3, 9])
    asked: list[int] = []

    def next_seed(slot: int) -> int:
        asked.append(slot)
        return slot + 1

    result = chunk_step(cell, actions_of(4, 3), next_seed)
    assert result.executed.tolist() == [1, 2, 3, 3]
    assert result.reward.tolist() == [[1, 0, 0], [11, 12, 0], [21, 22, 23], [31, 32, 33]]
    assert result.terminated.tolist() == [True, True, True, False]
    assert result.finished.tolist() == asked == [0, 1, 2]
    assert result.final_observation["state"].tolist() == [1, 2, 3]
    assert result.observation["state"].tolist() == [100, 200, 300, 3]
    assert cell.simulated.tolist() == [1, 2, 3, 3]
    assert [rows.tolist() for rows in cell.actions] == [[0, 3, 6, 9], [4, 7, 10], [8, 11]]


def test_success_is_that_of_the_last_sub_step_and_of_any() -> None:
    result = chunk_step(Counting([1, 2, 9, 9]), actions_of(4, 3), lambda slot: 0)
    assert result.success.tolist() == [False, True, False, False]
    assert result.success_within.tolist() == [False, True, True, True]


def test_a_retired_slot_keeps_its_last_observation() -> None:
    cell = Counting([2, 9])
    result = chunk_step(cell, actions_of(2, 3), lambda slot: None)
    assert result.observation["state"].tolist() == [2, 3]
    assert result.final_observation["state"].tolist() == [2]
    again = chunk_step(cell, actions_of(2, 3), lambda slot: None, np.array([1]))
    assert again.executed.tolist() == [0, 3]
    assert again.reward[0].tolist() == [0, 0, 0]
    assert again.observation["state"].tolist() == [2, 6]
    assert again.final_observation is None
    assert cell.simulated.tolist() == [2, 6]


@pytest.mark.parametrize("ends", [[99, 99], [2, 99]])
def test_observations_are_made_at_the_end_and_where_an_episode_ends(ends) -> None:
    cell = Counting(ends)
    chunk_step(cell, actions_of(2, 5), lambda slot: 0)
    assert cell.observed == 1 + (2 in ends)


def test_a_chunk_stops_when_every_slot_has_ended() -> None:
    cell = Counting([1, 2])
    chunk_step(cell, actions_of(2, 50), lambda slot: 0)
    assert len(cell.actions) == 2


def test_without_slots_nothing_is_simulated() -> None:
    cell = Counting([3, 3])
    result = chunk_step(cell, actions_of(2, 4), lambda slot: 0, np.array([], np.intp))
    assert result.executed.tolist() == [0, 0]
    assert (result.success, result.finished.size) == (None, 0)
    assert cell.actions == []
