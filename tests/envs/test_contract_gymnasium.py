"""Retirement, chunks, saved states and value checks of cells of Gymnasium environments."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    AddRenderObservation,
    FrameStackObservation,
    GrayscaleObservation,
    TimeLimit,
)

from rlinf_async.envs.contract import EnvCannotRestore, EnvMismatch
from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from tests.fixtures.envs import (
    CountEnv,
    DrawnEnv,
    NanEnv,
    PixelEnv,
    RememberingEnv,
    ReuseEnv,
    SharedArrayEnv,
    TinyEnv,
)
from tests.fixtures.seeds import next_seed


def cell_of(factory: Any, count: int = 2, *, checks: bool = True, **kwargs: Any) -> GymnasiumCell:
    cell = GymnasiumCell(
        functools.partial(factory, **kwargs), count, name="Tiny", first_slot=10, checks=checks
    )
    cell.reset(range(count))
    return cell


def zeros(cell: GymnasiumCell, chunk: int | None = None) -> Any:
    axes = (cell.slots,) if chunk is None else (cell.slots, chunk)
    return np.zeros((*axes, *cell.spaces.action.shape), cell.spaces.action.row_dtype)


def retire(slot: int) -> None:
    return None


class Staggered(CountEnv):
    """Slot k of a cell ends at step k + 1."""

    made = 0

    def __init__(self) -> None:
        Staggered.made += 1
        super().__init__(n=Staggered.made)


@pytest.fixture
def staggered(monkeypatch) -> GymnasiumCell:
    monkeypatch.setattr(Staggered, "made", 0)
    return cell_of(Staggered, 4)


def test_a_retired_slot_keeps_its_last_observation_and_is_not_stepped(staggered) -> None:
    cell = staggered
    first = cell.step(zeros(cell), retire)
    assert first.finished.tolist() == [0]
    assert first.final_observation["state"].tolist() == [[1]]
    assert first.observation["state"][:, 0].tolist() == [1, 1, 1, 1]
    second = cell.step(zeros(cell), retire)
    assert second.observation["state"][:, 0].tolist() == [1, 2, 2, 2]
    assert second.reward.tolist() == [0, 1, 1, 1]
    assert second.finished.tolist() == [1]
    assert cell._envs[0].count == 1


def test_a_retired_slot_is_given_an_episode_by_begin(staggered) -> None:
    cell = staggered
    cell.step(zeros(cell), retire)
    begun = cell.begin(np.array([0]), [77])
    assert begun["state"].tolist() == [[0]]
    after = cell.step(zeros(cell), next_seed)
    assert after.finished.tolist() == [0, 1]
    assert after.reward.tolist() == [1, 1, 1, 1]


def test_only_the_slots_asked_for_are_stepped(staggered) -> None:
    cell = staggered
    result = cell.step(zeros(cell), next_seed, slots=np.array([2, 3]))
    assert result.observation["state"][:, 0].tolist() == [0, 0, 1, 1]
    assert result.reward.tolist() == [0, 0, 1, 1]
    cell.step(zeros(cell), retire)
    with pytest.raises(ValueError, match=r"slots \[0\] are not within an episode"):
        cell.step(zeros(cell), next_seed, slots=np.array([0, 1]))


def test_a_cell_without_an_episode_cannot_be_stepped() -> None:
    cell = cell_of(CountEnv, n=1)
    cell.step(zeros(cell), retire)
    with pytest.raises(ValueError, match="no slot is within an episode"):
        cell.step(zeros(cell), retire)


@pytest.mark.parametrize("factory", [CountEnv, ReuseEnv, SharedArrayEnv])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_a_chunk_stops_where_an_episode_ends_and_is_observed_there(factory, n) -> None:
    cell, one = (cell_of(functools.partial(factory, n=n)) for _ in range(2))
    for _ in range(3):
        chunk = cell.chunk_step(zeros(cell, 3), next_seed)
        executed = min(3, n - one._envs[0].count)
        for sub in range(executed):
            single = one.step(zeros(one), next_seed)
            assert bool(single.finished.size) == (sub == executed - 1 and chunk.finished.size > 0)
        assert chunk.executed.tolist() == [executed] * 2
        assert chunk.reward.tolist() == [[1.0] * executed + [0.0] * (3 - executed)] * 2
        np.testing.assert_array_equal(chunk.observation["state"], single.observation["state"])
        assert chunk.terminated.tolist() == single.terminated.tolist()
        assert chunk.truncated.tolist() == single.truncated.tolist()
        if single.final_observation is not None:
            final = single.final_observation["state"]
            np.testing.assert_array_equal(chunk.final_observation["state"], final)


def test_slots_that_end_at_different_places_of_a_chunk(staggered) -> None:
    cell = staggered
    seeds = iter([100, None, 102])
    chunk = cell.chunk_step(zeros(cell, 3), lambda slot: next(seeds))
    assert chunk.executed.tolist() == [1, 2, 3, 3]
    assert chunk.finished.tolist() == [0, 1, 2]
    assert chunk.final_observation["state"][:, 0].tolist() == [1, 2, 3]
    assert chunk.observation["state"][:, 0].tolist() == [0, 2, 0, 3]
    again = cell.chunk_step(zeros(cell, 2), retire)
    assert again.executed.tolist() == [1, 0, 2, 1]


def test_steps_within_a_chunk_are_not_rendered() -> None:
    def drawn() -> Any:
        return GrayscaleObservation(AddRenderObservation(DrawnEnv(n=6)))

    cell = cell_of(drawn)
    drawings = [env.unwrapped for env in cell._envs]
    before = [env.renders for env in drawings]
    chunk = cell.chunk_step(zeros(cell, 4), next_seed)
    assert [env.renders - b for env, b in zip(drawings, before, strict=True)] == [1, 1]
    assert chunk.observation["state"][:, 0, 0].tolist() == [4, 4]
    chunk = cell.chunk_step(zeros(cell, 4), next_seed)  # ends at its second step: two frames
    assert chunk.executed.tolist() == [2, 2]
    assert [env.renders - b for env, b in zip(drawings, before, strict=True)] == [3, 3]
    assert chunk.final_observation["state"][:, 0, 0].tolist() == [6, 6]
    assert chunk.observation["state"][:, 0, 0].tolist() == [0, 0]


def random_steps(cell: GymnasiumCell, steps: int, seed: int) -> list[Any]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(steps):
        actions = rng.uniform(-1, 1, (cell.slots, *cell.spaces.action.shape)).astype(np.float32)
        result = cell.step(actions, lambda slot: 1000 + slot)
        found += [result.observation["state"], result.reward, result.terminated, result.truncated]
    return found


@pytest.mark.parametrize(
    "env_id",
    ["Ant-v5", "Humanoid-v5", "InvertedDoublePendulum-v5", "Hopper-v5", "Reacher-v5", "Pusher-v5"],
)
def test_a_mujoco_task_goes_on_bit_identically_in_another_cell(env_id) -> None:
    factory = functools.partial(gymnasium.make, env_id, disable_env_checker=True)
    cell, other = (GymnasiumCell(factory, 2, name=env_id) for _ in range(2))
    cell.reset([3, 4])
    random_steps(cell, 12, 0)
    state = cell.save_state()
    expected = random_steps(cell, 60, 1)
    restored = other.restore_state(state)
    np.testing.assert_array_equal(restored["state"], state["now/state"])
    for found, value in zip(random_steps(other, 60, 1), expected, strict=True):
        np.testing.assert_array_equal(found, value)


def test_an_environment_with_a_state_of_its_own_is_restored_with_its_generator() -> None:
    def limited() -> Any:
        return TimeLimit(RememberingEnv(), 5)

    cell, other = cell_of(limited), cell_of(limited)
    for _ in range(3):
        cell.step(zeros(cell), next_seed)
    state = cell.save_state()

    def on(one: GymnasiumCell) -> list[Any]:
        results = [one.step(zeros(one), lambda slot: 9) for _ in range(4)]
        return [(r.observation["state"].tolist(), r.truncated.tolist()) for r in results]

    expected = on(cell)
    other.restore_state(state)
    assert on(other) == expected
    assert [truncated for _, truncated in expected][1] == [True, True]


def test_the_saved_state_of_slots_that_differ_in_shape_and_retired_ones_comes_back() -> None:
    cell, other = cell_of(RememberingEnv, n=2), cell_of(RememberingEnv, n=2)
    cell.step(zeros(cell), next_seed, slots=np.array([1]))
    cell.step(zeros(cell), retire, slots=np.array([1]))  # the trails have lengths 1 and 3
    other.restore_state(cell.save_state())
    assert [len(env.trail) for env in other._envs] == [1, 3]
    result = other.step(zeros(other), next_seed)
    assert result.reward.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (CountEnv, "CountEnv has no get_state"),
        (lambda: FrameStackObservation(RememberingEnv(), 2), "wrapper FrameStackObservation has"),
    ],
)
def test_an_environment_that_cannot_restore_says_why(factory, why) -> None:
    with pytest.raises(EnvCannotRestore, match=f"Tiny cannot save and restore its state.*{why}"):
        cell_of(factory).save_state()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("where", "key"), [("obs", "observation 'state'"), ("reward", "reward")])
def test_numbers_that_are_not_finite_are_caught_with_key_and_slot(value, where, key) -> None:
    cell = cell_of(NanEnv, 3, k=2, where=where, value=value)
    cell._envs[0].k = cell._envs[2].k = 99
    for _ in range(2):
        cell.step(zeros(cell), next_seed)
    with pytest.raises(EnvMismatch, match=f"slot 11: {key}: expected a finite number") as it:
        cell.step(zeros(cell), next_seed)
    assert (it.value.slot, it.value.key) == (11, key)
    loose = cell_of(NanEnv, k=1, where=where, value=value, checks=False)
    for _ in range(2):
        loose.step(zeros(loose), next_seed)


def test_infos_may_hold_anything() -> None:
    cell = cell_of(NanEnv, k=0, where="info")
    assert cell.step(zeros(cell), next_seed).success is None


def test_a_reward_within_a_chunk_is_looked_at_too() -> None:
    cell = cell_of(NanEnv, k=1, where="reward")
    with pytest.raises(EnvMismatch, match="slot 10: reward"):
        cell.chunk_step(zeros(cell, 3), next_seed)


class Straying(TinyEnv):
    """Observes `values`, one after the other."""

    def __init__(self, space: Any, values: list[Any]) -> None:
        super().__init__()
        self.observation_space, self.values = space, values

    def observe(self) -> Any:
        return self.values[self.count]


@pytest.mark.parametrize(
    ("space", "good", "bad", "got"),
    [
        (spaces.Discrete(3, start=1), 1, 4, "4"),
        (spaces.Discrete(3), np.int64(2), -1, "-1"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1, 3]), r"3 at \[1\]"),
        (spaces.MultiBinary(2), np.zeros(2, np.int8), np.array([0, 2], np.int8), r"2 at \[1\]"),
        (
            spaces.Box(0, 9, (2,), np.int16),
            np.zeros(2, np.int16),
            np.full(2, 300),
            r"300 at \[0\]",
        ),
        (
            spaces.Box(0, 9, (2,), np.int8),
            np.zeros(2, np.int8),
            np.full(2, 300),
            "300 to 300",
        ),
        (
            spaces.Box(-1, 1, (2,), np.float32),
            np.zeros(2, np.float32),
            np.zeros((2, 1), np.float32),
            r"float32 of shape \(2, 1\)",
        ),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            np.zeros(2, np.uint8),
            np.zeros(2, np.float32),
            r"float32 of shape \(2,\)",
        ),
    ],
    ids=str,
)
def test_an_observation_out_of_its_space_is_caught_in_any_step(space, good, bad, got) -> None:
    cell = cell_of(lambda: Straying(space, [good, good, good, bad]))
    for _ in range(2):
        cell.step(zeros(cell), next_seed)
    with pytest.raises(EnvMismatch, match=f"slot 10: observation 'state': expected.*got {got}"):
        cell.step(zeros(cell), next_seed)


def test_bounds_of_floats_are_compared_in_the_first_reset_and_step_with_room_for_rounding() -> None:
    space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def straying(*values: float) -> Any:
        return cell_of(lambda: Straying(space, [np.array([v], np.float32) for v in values]))

    with pytest.raises(
        EnvMismatch, match=r"a value from -1.0 to 1.0, as declared .* got 1.5 at \[0\]"
    ):
        straying(1.5)
    loose = cell_of(lambda: Straying(space, [np.full(1, 1.5, np.float32)] * 2), checks=False)
    assert loose.step(zeros(loose), next_seed).observation["state"].tolist() == [[1.5], [1.5]]
    cell = straying(1.00001, -1.00001, 3.0)
    for _ in range(2):
        cell.step(zeros(cell), next_seed)


def test_an_action_that_is_not_finite_is_the_policy_s_doing() -> None:
    cell = cell_of(CountEnv, action="continuous")
    actions = zeros(cell)
    actions[1] = np.nan
    with pytest.raises(
        EnvMismatch, match="slot 11: action: expected finite numbers from the policy"
    ):
        cell.step(actions, next_seed)


@pytest.mark.parametrize("layout", ["contiguous", "fortran", "reversed", "strided", "readonly"])
@pytest.mark.parametrize("channels_first", [False, True])
def test_pixels_of_any_memory_layout_arrive_as_they_are(layout, channels_first) -> None:
    cell = cell_of(PixelEnv, layout=layout, channels_first=channels_first)
    result = cell.step(zeros(cell), next_seed)
    assert result.observation["image"].shape == (2, *((3, 8, 6) if channels_first else (8, 6, 3)))
    assert result.observation["image"].flags.c_contiguous
    for env, image in zip(cell._envs, result.observation["image"], strict=True):
        np.testing.assert_array_equal(image, env.picture)
