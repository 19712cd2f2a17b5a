"""The adapter for Gymnasium: auto-reset, copies, spaces, and what it says when they do not fit."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import Autoreset, TimeLimit

from rlinf_async.envs.contract import EnvMismatch
from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from rlinf_async.errors import BadInput
from tests.fixtures.envs import (
    CountEnv,
    DieEnv,
    InfoEnv,
    ReuseEnv,
    SeedEnv,
    SlowEnv,
    SpaceEnv,
    TinyEnv,
)

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)


def cell_of(factory: Any, count: int = 2, **kwargs: Any) -> GymnasiumCell:
    cell = GymnasiumCell(functools.partial(factory, **kwargs), count, name="Tiny", first_slot=10)
    cell.reset(range(count))
    return cell


def spaced(obs: Any, act: Any = TWO, count: int = 2) -> GymnasiumCell:
    return cell_of(SpaceEnv, count, obs=obs, act=act)


def idle(cell: GymnasiumCell, next_seed: Any = id) -> Any:
    action = cell.spaces.action
    return cell.step(np.zeros((cell.slots, *action.shape), action.row_dtype), next_seed)


@pytest.mark.parametrize(
    ("end", "bits"), [("term", (True, False)), ("trunc", (False, True)), ("both", (True, True))]
)
def test_the_final_observation_is_kept_and_the_next_episode_begun(end, bits) -> None:
    cell, asked = cell_of(CountEnv, n=3, end=end), []

    def next_seed(slot: int) -> int:
        asked.append(slot)
        return 5

    for _ in range(2):
        for step in (1, 2):
            result = idle(cell)
            assert result.observation["state"].tolist() == [[step], [step]]
            assert result.final_observation is None
            assert result.finished.size == 0
        asked.clear()
        result = idle(cell, next_seed)
        assert asked == [0, 1]
        assert result.finished.tolist() == [0, 1]
        assert result.final_observation["state"].tolist() == [[3], [3]]
        assert result.observation["state"].tolist() == [[0], [0]]
        assert (result.terminated[0], result.truncated[0]) == bits
        assert result.reward.tolist() == [1.0, 1.0]


def test_an_episode_of_one_step_ends_in_every_step() -> None:
    cell = cell_of(CountEnv, n=1)
    for _ in range(3):
        result = idle(cell)
        assert result.final_observation["state"].tolist() == [[1], [1]]
        assert result.observation["state"].tolist() == [[0], [0]]


@pytest.mark.parametrize(("nested", "name"), [(False, "state"), (True, "inner/count")])
def test_reused_arrays_are_copied(nested, name) -> None:
    cell = cell_of(ReuseEnv, n=3, nested=nested)
    results = [idle(cell) for _ in range(4)]
    assert [result.observation[name][0, 0] for result in results] == [1, 2, 0, 1]
    assert results[2].final_observation[name].tolist() == [[3], [3]]


def test_each_slot_is_reset_with_its_own_seed_and_once_per_episode(monkeypatch) -> None:
    monkeypatch.setattr(SeedEnv, "seeds", [])
    cell = cell_of(SeedEnv, n=2)
    numbers = iter(range(100, 200))
    first = cell.reset([50, 51])["state"]
    assert not np.array_equal(first[0], first[1])
    for _ in range(4):
        idle(cell, lambda slot: next(numbers))
    assert SeedEnv.seeds == [0, 1, 50, 51, 100, 101, 102, 103]
    np.testing.assert_array_equal(cell.reset([50, 51])["state"], first)


def test_a_sampled_space_is_seeded_too() -> None:
    cell = spaced(spaces.Dict({"a": BOX, "b": spaces.Discrete(1000)}))
    again, other = (cell.reset(seeds) for seeds in ([1, 2], [3, 1]))
    np.testing.assert_array_equal(cell.reset([1, 2])["a"], again["a"])
    np.testing.assert_array_equal(other["b"][1], again["b"][0])
    assert again["b"][0] != again["b"][1]


class Liar(TinyEnv):
    """Returns `reset_gives` or `step_gives` in place of what it declares."""

    observation_space = spaces.Dict({"pose": BOX})

    def __init__(self, reset_gives: Any = None, step_gives: Any = None) -> None:
        super().__init__()
        good = {"pose": np.zeros(2, np.float32)}
        self.reset_gives = (good, {}) if reset_gives is None else reset_gives
        self.step_gives = (good, 1.0, False, False, {}) if step_gives is None else step_gives

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.reset_gives

    def step(self, action: Any) -> Any:
        return self.step_gives


@pytest.mark.parametrize(
    ("observation", "got"),
    [
        ({"pose": np.zeros(3, np.float32)}, r"float32 of shape \(3,\)"),
        ({"pose": np.zeros((1, 2), np.float32)}, r"float32 of shape \(1, 2\)"),
        ({"pose": np.zeros(2, complex)}, r"complex128 of shape \(2,\)"),
        ({"pose": None}, "None"),
        ({"pose": [[1, 2], [3]]}, "a list"),
        ({"pose": "left"}, "a str"),
        ({"other": np.zeros(2)}, r"keys \['other'\]"),
        (Liar.observation_space, "a Box|the space object"),
        (None, "None"),
        (np.zeros(2, np.float32), r"float32 of shape \(2,\)"),
    ],
    ids=str,
)
def test_an_observation_that_does_not_fit_names_slot_key_expected_and_got(observation, got) -> None:
    with pytest.raises(EnvMismatch, match=f"Tiny, slot 10: observation 'pose': .*got {got}") as it:
        cell_of(Liar, reset_gives=(observation, {}))
    assert (it.value.slot, it.value.key) == (10, "observation 'pose'")
    cell = cell_of(Liar, step_gives=(observation, 1.0, False, False, {}))
    with pytest.raises(EnvMismatch, match=got):
        idle(cell)


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (({"pose": np.zeros(2)}, 1.0, True, {}), "step()"),
        (({"pose": np.zeros(2)}, None, False, False, {}), "reward"),
        (({"pose": np.zeros(2)}, np.zeros(2), False, False, {}), "reward"),
        (({"pose": np.zeros(2)}, 1.0, 0, False, {}), "terminated"),
        (({"pose": np.zeros(2)}, 1.0, False, None, {}), "truncated"),
    ],
    ids=["old interface", "no reward", "two rewards", "integer bit", "no bit"],
)
def test_a_step_that_does_not_fit_names_what(answer, key) -> None:
    cell = cell_of(Liar, step_gives=answer)
    with pytest.raises(EnvMismatch) as it:
        idle(cell)
    assert it.value.key == key


def test_a_reset_of_the_old_interface_is_named() -> None:
    with pytest.raises(EnvMismatch, match=r"reset\(\): expected \(observation, info\)"):
        cell_of(Liar, reset_gives={"pose": np.zeros(2)})


def test_a_shape_that_changes_later_is_noticed() -> None:
    cell = cell_of(Liar)
    idle(cell)
    for env in cell._envs:
        env.step_gives = ({"pose": np.zeros(1, np.float32)}, 1.0, False, False, {})
    with pytest.raises(EnvMismatch, match=r"got float32 of shape \(1,\)"):
        idle(cell)


def test_a_choice_outside_its_declared_range_is_noticed() -> None:
    class OffByOne(TinyEnv):
        observation_space = spaces.Discrete(3, start=1)

        def observe(self) -> Any:
            return self.count

    with pytest.raises(EnvMismatch, match=r"expected a value from 1 to 3, as declared .* got 0"):
        cell_of(OffByOne)


def test_success_is_read_from_infos_of_any_kind() -> None:
    cell = cell_of(InfoEnv, n=3)
    assert [idle(cell).success for _ in range(2)] == [None, None]
    assert idle(cell).success.tolist() == [True, True]
    assert idle(cell).success is None


def test_a_slow_environment_with_a_tail_keeps_counting() -> None:
    cell = cell_of(SlowEnv, dt=0.0, p=0.5, tail=0.001, n=4)
    assert [idle(cell).observation["state"][0, 0] for _ in range(4)] == [1, 2, 3, 0]


def test_an_error_in_a_step_says_which_slot_and_step() -> None:
    cell = cell_of(DieEnv, k=2)
    for _ in range(2):
        idle(cell)
    with pytest.raises(RuntimeError, match="died on purpose in step") as it:
        idle(cell)
    assert it.value.__notes__ == ["raised by Tiny, slot 10, step 2 of its episode"]


def test_the_step_of_an_error_counts_from_the_start_of_its_episode() -> None:
    class EndsThenFails(CountEnv):
        left = 4

        def step(self, action: Any) -> Any:
            self.left -= 1
            return super().step(action) if self.left else 1 / 0

    cell = cell_of(EndsThenFails, n=2)
    for _ in range(3):
        idle(cell)
    with pytest.raises(ZeroDivisionError) as it:
        idle(cell)
    assert it.value.__notes__ == ["raised by Tiny, slot 10, step 1 of its episode"]


def test_an_error_in_a_reset_says_which_slot_and_seed() -> None:
    with pytest.raises(RuntimeError, match="died on purpose in reset") as it:
        cell_of(DieEnv, where="reset")
    assert it.value.__notes__ == ["raised by reset of Tiny, slot 10, seed 0"]


def test_a_constructor_that_raises_is_bad_input_and_closes_the_slots_before_it() -> None:
    made: list[Any] = []

    class Closing(CountEnv):
        closed = False

        def close(self) -> None:
            self.closed = True

    def third_fails() -> Any:
        if len(made) == 2:
            raise OSError("no display")
        made.append(Closing())
        return made[-1]

    with pytest.raises(BadInput, match="constructor raised OSError: no display") as it:
        cell_of(third_fails, 4)
    assert "third_fails" in it.value.__notes__[0]
    assert [env.closed for env in made] == [True, True]


def test_closing_twice_is_harmless_and_a_failure_does_not_stop_it() -> None:
    closed: list[int] = []

    class Stubborn(CountEnv):
        def close(self) -> None:
            closed.append(1)
            raise RuntimeError("will not close")

    cell = cell_of(Stubborn, 3)
    with pytest.raises(RuntimeError, match="will not close"):
        cell.close()
    assert len(closed) == 3
    cell.close()


def test_factories_that_do_not_make_one_new_environment_are_refused() -> None:
    shared = CountEnv()
    with pytest.raises(BadInput, match="same object twice"):
        cell_of(lambda: shared)
    with pytest.raises(BadInput, match=r"must return one gymnasium.Env; got a dict"):
        cell_of(dict)
    with pytest.raises(BadInput, match=r"one gymnasium.Env; got a SyncVectorEnv; .*num_envs"):
        cell_of(lambda: gymnasium.vector.SyncVectorEnv([CountEnv]))
    with pytest.raises(BadInput, match=r"resets itself.*Autoreset"):
        cell_of(lambda: Autoreset(CountEnv()))


def test_slots_with_different_spaces_are_refused() -> None:
    kinds = iter(["discrete", "continuous"])
    with pytest.raises(BadInput, match="its slots differ in action_space"):
        cell_of(lambda: CountEnv(action=next(kinds)))


def test_a_time_limit_wrapper_truncates_and_is_reported() -> None:
    cell = cell_of(lambda: TimeLimit(CountEnv(n=100), 3))
    assert cell.time_limit == 3
    assert [idle(cell).truncated.tolist() for _ in range(4)][2] == [True, True]
    assert cell_of(CountEnv).time_limit is None
