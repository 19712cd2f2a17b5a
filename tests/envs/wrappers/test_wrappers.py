"""Wrappers around cells against Gymnasium's wrapper of the same meaning around each environment."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium import wrappers as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.envs import wrappers as ours
from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.request import EnvRequest
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe
from tests.fixtures.envs import CountEnv
from tests.fixtures.seeds import next_seed

N = 3


class Noisy(gymnasium.Env):
    """Random vectors and images; episodes of random length that end in either way."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (12, 10, 3), np.uint8),
            "state": spaces.Box(-9, 9, (2,), np.float32),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6))
        self.last = np.zeros(2, np.float32)
        return self.look(), {}

    def look(self) -> Any:
        image = self.np_random.integers(0, 256, (12, 10, 3)).astype(np.uint8)
        return {"image": image, "state": self.last.astype(np.float32)}

    def step(self, action: Any) -> Any:
        self.left -= 1
        self.last = np.asarray(action)
        over = self.left == 0
        cut = over and self.np_random.random() < 0.5
        return self.look(), float(3 * action.sum()), over and not cut, cut, {}


class OnlyState(gymnasium.ObservationWrapper):
    """The vector alone."""

    def __init__(self, env: Any, key: str = "state") -> None:
        super().__init__(env)
        self.key = key
        self.observation_space = env.observation_space[key]

    def observation(self, observation: Any) -> Any:
        return observation[self.key]


def one(key: str) -> gymnasium.Env:
    return OnlyState(Noisy(), key)


def double(x: Any) -> Any:
    return x * 2.0


def cell_of(factory: Any, *wrappers: Any, **more: Any) -> Any:
    request = EnvRequest(
        env=describe(factory, where="test"),
        wrappers=tuple(w if isinstance(w, str) else describe(w, where="test") for w in wrappers),
        # Not measured: on a busy machine that may start processes for each example.
        **{"backend": "loop", **more},
    )
    return make_cell(request.to_json(), N)


def played(cell: Any, seed: int, steps: int = 25) -> list[Any]:
    rng = np.random.default_rng(seed)
    found: list[Any] = [cell.reset([seed, seed + 1, seed + 2])]
    for t in range(steps):
        actions = rng.uniform(-1.5, 1.5, (N, 2)).astype("float32")
        found.append(cell.step(actions, lambda slot, t=t: 100 * t + slot))
    return found


def assert_same(ours_: list[Any], theirs_: list[Any], name: str, shape: Any = None) -> None:
    def values(observation: Any) -> Any:
        [array] = observation.values() if len(observation) == 1 else [observation[name]]
        return array if shape is None else array.reshape(len(array), *shape)

    np.testing.assert_array_equal(values(ours_[0]), values(theirs_[0]))
    for a, b in zip(ours_[1:], theirs_[1:], strict=True):
        np.testing.assert_array_equal(values(a.observation), values(b.observation))
        np.testing.assert_allclose(a.reward, b.reward, rtol=1e-12)
        np.testing.assert_array_equal(a.terminated, b.terminated)
        np.testing.assert_array_equal(a.truncated, b.truncated)
        np.testing.assert_array_equal(a.finished, b.finished)
        if len(a.finished):
            np.testing.assert_array_equal(values(a.final_observation), values(b.final_observation))


STATE = functools.partial(one, key="state")
IMAGE = functools.partial(one, key="image")
PAIRS = {
    "scale": (STATE, ours.TransformReward(function=double)),
    "clip": (STATE, ours.ClipReward(low=-0.5, high=1.0)),
    "gray": (IMAGE, ours.Grayscale()),
}


def wrapped(pair: str) -> gymnasium.Env:
    env = PAIRS[pair][0]()
    if pair == "scale":
        return theirs.TransformReward(env, double)
    if pair == "clip":
        return theirs.ClipReward(env, -0.5, 1.0)
    return theirs.GrayscaleObservation(env, keep_dim=True)


@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("pair", PAIRS)
@given(seed=st.integers(0, 10_000))
def test_the_same_as_gymnasium_s_wrapper(pair: str, seed: int) -> None:
    factory, mine = PAIRS[pair]
    plain = cell_of(functools.partial(wrapped, pair=pair))
    assert_same(played(cell_of(factory, mine), seed), played(plain, seed), "state")


def stacked(count: int) -> gymnasium.Env:
    return theirs.FrameStackObservation(one("state"), count)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 4))
def test_stacked_frames_are_gymnasium_s_in_one_row(seed: int, count: int) -> None:
    mine = played(cell_of(STATE, ours.FrameStack(count=count)), seed)
    other = played(cell_of(functools.partial(stacked, count=count)), seed)
    assert_same(mine, other, "state", (2 * count,))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_stacked_images_lie_along_their_channels(seed: int) -> None:
    plain, both = (played(cell_of(IMAGE, *w), seed) for w in ([], [ours.FrameStack(count=2)]))
    assert both[0]["image"].shape == (N, 12, 10, 6)
    before = plain[0]["image"]
    for a, b in zip(plain[1:], both[1:], strict=True):
        stack = b.observation["image"]
        np.testing.assert_array_equal(stack[..., 3:], a.observation["image"])
        going = np.setdiff1d(np.arange(N), a.finished)
        np.testing.assert_array_equal(stack[going][..., :3], before[going])
        new = stack[a.finished]
        np.testing.assert_array_equal(new[..., :3], new[..., 3:])
        before = a.observation["image"]


def test_an_action_is_repeated_until_the_episode_ends() -> None:
    cell = cell_of(functools.partial(CountEnv, n=5), ours.ActionRepeat(count=3))
    cell.reset([0, 1, 2])
    first = cell.step(np.zeros(N, np.int64), lambda slot: slot)
    assert first.reward.tolist() == [3.0] * N
    assert first.observation["state"][:, 0].tolist() == [3] * N
    last = cell.step(np.zeros(N, np.int64), lambda slot: slot)
    assert last.reward.tolist() == [2.0] * N
    assert last.final_observation["state"][:, 0].tolist() == [5] * N
    assert last.observation["state"][:, 0].tolist() == [0] * N


def test_a_time_limit_replaces_the_environment_s_own() -> None:
    for env in ("HalfCheetah-v5", "MountainCar-v0"):
        assert describe_env({"env": env, "time_limit": 7})["time_limit"] == 7
    cell = cell_of(functools.partial(CountEnv, n=50), time_limit=2)
    cell.reset([0, 1, 2])
    ends = [cell.step(np.zeros(N, np.int64), next_seed).truncated.tolist() for _ in range(2)]
    assert ends == [[False] * N, [True] * N]


def test_actions_stick_as_often_as_asked_and_the_same_in_every_slot_s_own_episode() -> None:
    sticky = ours.StickyActions(probability=0.3)
    cell = cell_of(STATE, sticky, time_limit=1000)
    taken, asked = [], []
    rng = np.random.default_rng(0)
    cell.reset([5, 6, 7])
    for _ in range(2000):
        action = rng.uniform(-1, 1, (N, 2)).astype("float32")
        result = cell.step(action, lambda slot: int(rng.integers(2**60)))
        seen = result.observation["state"].copy()
        if len(result.finished):
            seen[result.finished] = result.final_observation["state"]
        taken.append((seen == action).all(axis=1))
        asked.append(action)
    stuck = 1.0 - np.mean(taken)
    assert 0.15 < stuck < 0.3  # the first action of an episode never sticks
    again = [played(cell_of(STATE, sticky), 3)[t].reward for t in (1, 5, 20)]
    for reward, t in zip(again, (1, 5, 20), strict=True):
        np.testing.assert_array_equal(reward, played(cell_of(STATE, sticky), 3)[t].reward)


def test_resizing_takes_the_mean_of_what_a_pixel_covers() -> None:
    plain, small = (
        played(cell_of(IMAGE, *w), 1, 3) for w in ([], [ours.Resize(height=6, width=5)])
    )
    image = plain[0]["image"].astype(np.float64)
    mean = image.reshape(N, 6, 2, 5, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(small[0]["image"], mean, atol=0.51)


def test_observations_are_chosen_renamed_and_changed() -> None:
    cell = cell_of(
        Noisy,
        ours.SelectObservations(names=("state",), rename=(("state", "pose"),)),
        ours.TransformObservation(name="pose", function=double),
    )
    assert [spec.name for spec in cell.spaces.observation] == ["pose"]
    plain = played(cell_of(STATE), 4)
    for a, b in zip(played(cell, 4)[1:], plain[1:], strict=True):
        np.testing.assert_array_equal(a.observation["pose"], 2 * b.observation["state"])


BATCHED = {
    "frames": (ours.FrameStack(count=3),),
    "repeat": (ours.ActionRepeat(count=2),),
    "sticky": (ours.StickyActions(probability=0.5),),
    "all": (
        ours.ActionRepeat(count=2),
        ours.StickyActions(),
        ours.FrameStack(count=2),
        ours.ScaleReward(scale=0.1, shift=-1.0),
    ),
}


def go_on(cell: Any, seed: int, chunk: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    shape = (N, chunk, 3) if chunk else (N, 3)
    step = cell.chunk_step if chunk else cell.step
    return [
        step(rng.uniform(-1, 1, shape).astype("float32"), lambda slot, t=t: 7 * t + slot)
        for t in range(12)
    ]


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("name", BATCHED)
def test_wrapped_cells_go_on_bit_identically_from_a_saved_state(name: str, chunk: int) -> None:
    cell = cell_of_id("Hopper-v5", BATCHED[name], time_limit=9)
    cell.reset([1, 2, 3])
    go_on(cell, 0, chunk)
    saved = cell.save_state()
    first = go_on(cell, 1, chunk)
    cell.reset([4, 5, 6])
    cell.restore_state(saved)
    for a, b in zip(first, go_on(cell, 1, chunk), strict=True):
        np.testing.assert_array_equal(a.observation["state"], b.observation["state"])
        np.testing.assert_array_equal(a.reward, b.reward)


def cell_of_id(env: str, wrappers: Any, **more: Any) -> Any:
    described = tuple(describe(w, where="test") for w in wrappers)
    return make_cell(EnvRequest(env=env, wrappers=described, **more).to_json(), N)


def test_only_the_slots_asked_for_move_and_a_retired_one_keeps_its_last_stack() -> None:
    cell = cell_of_id("Hopper-v5", BATCHED["frames"], time_limit=2)
    plain = cell_of_id("Hopper-v5", (), time_limit=2)
    action = np.full((N, 3), 0.3, np.float32)
    first, one_plain = cell.reset([1, 2, 3])["state"], plain.reset([1, 2, 3])["state"]
    np.testing.assert_array_equal(first, np.tile(one_plain, 3))
    part = cell.step(action, next_seed, slots=np.array([1])).observation["state"]
    np.testing.assert_array_equal(part[[0, 2]], first[[0, 2]])
    assert (part[1] != first[1]).any()
    done = cell.step(action, lambda slot: None, slots=np.array([1]))
    assert done.finished.tolist() == [1]
    np.testing.assert_array_equal(done.observation["state"][1], done.final_observation["state"][0])


def test_gymnasium_s_wrappers_go_by_name_and_leave_the_batch() -> None:
    request = {"env": "Hopper-v5", "wrappers": ["RescaleAction"]}
    with pytest.raises(BadInput, match="constructor raised TypeError"):
        make_cell(request, 1)
    limit = ours.GymnasiumWrapper(name="TimeLimit", arguments={"max_episode_steps": 5})
    request = {"env": "Hopper-v5", "wrappers": [describe(limit, where="test")]}
    assert describe_env(request)["path"] == "gymnasium"
    assert describe_env(request)["time_limit"] == 5


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"no wrapper 'ClipRewards'.*ClipReward"):
        make_cell({"env": "Hopper-v5", "wrappers": ["ClipRewards"]}, 1)
    with pytest.raises(BadInput, match="it wraps no cell"):
        make_cell({"env": "Hopper-v5", "wrappers": [{"$name": "math:sqrt"}]}, 1)
    with pytest.raises(BadInput, match=r"Grayscale: 'state' is no image"):
        cell_of(STATE, ours.Grayscale(name="state"))
    with pytest.raises(BadInput, match=r"FrameStack: no observation 'imag'.*image"):
        cell_of(Noisy, ours.FrameStack(count=2, names=("imag",)))
    for wrong in (
        lambda: ours.FrameStack(count=1),
        lambda: ours.ActionRepeat(count=0),
        lambda: ours.ClipReward(low=1.0, high=0.0),
        lambda: ours.StickyActions(probability=1.0),
        lambda: ours.Resize(height=0, width=4),
    ):
        with pytest.raises(BadInput):
            wrong()


def test_a_chunk_is_part_of_the_described_action() -> None:
    told = describe_env({"env": "HalfCheetah-v5", "chunk": 4})["spaces"]
    assert told["chunk"] == 4
    assert told["action"]["shape"] == (4, 6)


class Wins(Noisy):
    """Succeeds at its third step and goes on, unless it has ended before."""

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        return *answer[:4], {"success": self.left == 1}


@pytest.mark.parametrize("chunk", [1, 3])
def test_success_ends_an_episode_and_is_all_the_reward(chunk: int) -> None:
    seeds = (11, 12, 13)
    cell = cell_of_factory(Wins, N, ours.SuccessReward())
    alone = [cell_of_factory(Wins, 1) for _ in range(N)]
    for slot, seed in enumerate(seeds):
        begun = cell.begin(np.array([slot]), [seed])
        again = alone[slot].reset([seed])
        assert all((begun[name] == again[name]).all() for name in begun)
    one, live, wins = np.full((N, 2), 0.5, np.float32), list(range(N)), 0
    while live:
        given = one if chunk == 1 else np.repeat(one[:, None], chunk, 1)
        step = cell.step if chunk == 1 else cell.chunk_step
        result = step(given, lambda slot: None, slots=np.array(live))
        for slot in live[:]:
            for _ in range(chunk):
                single = alone[slot].step(one[:1], lambda slot: None)
                won = bool(single.success[0])
                if over := won or bool(single.terminated[0] | single.truncated[0]):
                    break
            assert np.sum(result.reward[slot]) == float(won)
            assert result.terminated[slot] == (won or bool(single.terminated[0]))
            if over:
                last = result.final_observation["state"][result.finished.tolist().index(slot)]
                assert (last == single.observation["state"][0]).all()
                live.remove(slot)
                wins += won
    assert wins
    for each in (cell, *alone):
        each.close()


def test_success_must_be_reported_by_someone() -> None:
    cell = cell_of_factory(CountEnv, 1, ours.SuccessReward())
    cell.reset([0])
    for _ in range(4):
        cell.step(np.zeros(1, np.int64), next_seed)
    with pytest.raises(BadInput, match="nothing of success"):  # at the end of an episode of five
        cell.step(np.zeros(1, np.int64), next_seed)
    cell.close()


def cell_of_factory(factory: Any, count: int, *wrappers: Any) -> Any:
    described = [describe(each, where="test") for each in wrappers]
    env = describe(factory, where="test")
    return make_cell(EnvRequest(env=env, wrappers=described).to_json(), count)
