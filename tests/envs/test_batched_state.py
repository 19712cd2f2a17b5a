"""Saved states of batched cells: what follows has the same bits, rewards included."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.tasks import BATCHED_IDS, batched_task
from tests.fixtures.seeds import next_seed

SLOTS = 3


def open_cell(env_id: str) -> BatchedCell:
    task = dataclasses.replace(batched_task(env_id), time_limit=30)
    return BatchedCell(task, SLOTS, dtype="float64")


def act(cell: BatchedCell, steps: int, *, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Random steps of random slots and chunks; everything that came back."""
    rng, spec, told = np.random.default_rng(seed), cell.spaces.action, []
    for t in range(steps):
        actions = rng.uniform(spec.low, spec.high, (SLOTS, 3, *spec.shape)).astype(np.float32)
        chosen = np.flatnonzero(rng.random(SLOTS) < 0.8)

        def next_seed(slot: int, t: int = t) -> int:
            return 10 * t + slot

        if t % 4 == 3:
            got = cell.chunk_step(actions, next_seed, slots=chosen)
        else:
            got = cell.step(actions[:, 0], next_seed, slots=chosen)
        final = got.final_observation or {"state": np.zeros(0)}
        told.append(
            (got.observation["state"], got.reward, got.terminated, got.truncated, final["state"])
        )
    return told


def assert_same(got: list[tuple[np.ndarray, ...]], want: list[tuple[np.ndarray, ...]]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("env_id", BATCHED_IDS)
def test_every_task_continues_bit_identically(env_id) -> None:
    cell = open_cell(env_id)
    cell.reset([1, 2, 3])
    told = act(cell, 12, seed=0)
    state = cell.save_state()
    kept = {name: values.copy() for name, values in state.items()}
    want = act(cell, 60, seed=1)
    assert any(np.any(each[2] | each[3]) for each in want)
    for other in (cell, open_cell(env_id)):
        restored = other.restore_state(state)["state"]
        np.testing.assert_array_equal(restored, told[-1][0])
        assert_same(act(other, 60, seed=1), want)
    for name, values in kept.items():
        np.testing.assert_array_equal(state[name], values)


def test_retired_slots_stay_so() -> None:
    cell, other = open_cell("Hopper-v5"), open_cell("Hopper-v5")
    cell.begin(np.array([0, 2]), [1, 2])
    other.reset([7, 8, 9])
    other.restore_state(cell.save_state())
    result = other.step(np.full((SLOTS, 3), 0.5, np.float32), next_seed)
    assert result.reward.astype(bool).tolist() == [True, False, True]


def test_a_state_of_another_task_or_size_is_refused() -> None:
    ant, hopper = open_cell("Ant-v5"), open_cell("Hopper-v5")
    for cell in (ant, hopper):
        cell.reset([1, 2, 3])
    with pytest.raises(ValueError, match=r"'physics': expected shape \(3, \d+\), got \(3, \d+\)"):
        hopper.restore_state(ant.save_state())
    with pytest.raises(ValueError, match="is missing; is it of another task"):
        ant.restore_state({"physics": ant.save_state()["physics"]})
    smaller = BatchedCell(batched_task("Hopper-v5"), 2)
    with pytest.raises(ValueError, match="'physics': expected shape"):
        smaller.restore_state(hopper.save_state())
