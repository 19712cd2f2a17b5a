"""Every way of resetting gives the transitions of a slow, obvious loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import TransformObservation as TransformObservations
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.envs.actions import NestedActions
from rlinf_async.envs.contract import EnvCannotRestore, EnvMismatch
from rlinf_async.envs.gymnasium_actions import action_nest, action_spec
from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from rlinf_async.envs.gymnasium_spaces import observation_leaves
from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.vector_adapter import VectorCell
from rlinf_async.errors import BadInput
from rlinf_async.execution import references
from tests.fixtures.envs import CountEnv, DieEnv, NanEnv, WanderingEnv
from tests.fixtures.generated_spaces import random_row, space_trees
from tests.fixtures.seeds import next_seed

SLOTS = 3
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)
MODES = list(AutoresetMode)
Seeds = Callable[[int, int], int | None]


def seed_of(slot: int, episode: int) -> int:
    return 1000 * slot + episode


def vector_factory(make: Callable[[], Any], mode: AutoresetMode, kind: Any = SyncVectorEnv) -> Any:
    def factory(num_envs: int) -> Any:
        return kind([make] * num_envs, autoreset_mode=mode)

    return factory


def vector_cell(make: Callable[[], Any], mode: Any, kind: Any = SyncVectorEnv) -> VectorCell:
    return VectorCell(vector_factory(make, mode, kind), SLOTS, name="Many", first_slot=10)


def flat(observation: Any, space: Any) -> dict[str, list[Any]]:
    """Name to plain numbers, as lists."""
    found = {}
    for leaf in observation_leaves(space, who="test"):
        value = observation
        for step in leaf.path:
            value = value[step]
        if isinstance(value, str):
            value = np.frombuffer(value.encode().ljust(leaf.spec.shape[0], b"\0"), np.uint8)
        found[leaf.spec.name] = np.asarray(value).astype(leaf.spec.dtype).tolist()
    return found


def obvious(make: Callable[[], Any], rows: np.ndarray, seeds: Seeds) -> list[list[Any]]:
    """The transitions of each slot by a loop over one environment after the other."""
    slots = []
    for slot in range(SLOTS):
        env, episode, transitions = make(), 0, []
        nest = action_nest(env.action_space, who="test")
        decode = NestedActions(action_spec(nest, who="test"), nest, SLOTS)
        observation, _ = env.reset(seed=seeds(slot, 0))
        for actions in rows:
            before = flat(observation, env.observation_space)
            action = decode.each(actions)(slot)
            observation, reward, terminated, truncated, info = env.step(action)
            after, last, success = flat(observation, env.observation_space), None, None
            if terminated or truncated:
                last, success = after, info["success"]
                episode += 1
                seed = seeds(slot, episode)
                if seed is not None:
                    observation, _ = env.reset(seed=seed)
                after = flat(observation, env.observation_space)
            transitions.append((before, reward, terminated, truncated, last, success, after))
            if last is not None and seed is None:
                break
        slots.append(transitions)
    return slots


def of_slot(observation: dict[str, Any], slot: int) -> dict[str, Any]:
    return {name: rows[slot].tolist() for name, rows in observation.items()}


def collected(cell: Any, rows: np.ndarray, seeds: Seeds) -> list[list[Any]]:
    """The same from a cell."""
    episodes = [0] * SLOTS

    def next_seed(slot: int) -> int | None:
        episodes[slot] += 1
        return seeds(slot, episodes[slot])

    slots: list[list[Any]] = [[] for _ in range(SLOTS)]
    running = set(range(SLOTS))
    observation = cell.reset([seeds(slot, 0) for slot in range(SLOTS)])
    for actions in rows:
        if not running:
            break
        before = observation
        result = cell.step(actions, next_seed)
        observation = result.observation
        for slot in sorted(running):
            last = success = None
            if slot in result.finished:
                place = result.finished.tolist().index(slot)
                last = of_slot(result.final_observation, place)
                success = bool(result.success[slot])
                if seeds(slot, episodes[slot]) is None:
                    running.discard(slot)
            slots[slot].append(
                (
                    of_slot(before, slot),
                    float(result.reward[slot]),
                    bool(result.terminated[slot]),
                    bool(result.truncated[slot]),
                    last,
                    success,
                    of_slot(observation, slot),
                )
            )
    return slots


def actions_for(space: Any, steps: int, seed: int) -> np.ndarray:
    spec = action_spec(action_nest(space, who="test"), who="test")
    return np.stack([random_row(spec, SLOTS, seed + t) for t in range(steps)])


@given(
    space_trees(for_actions=False),
    space_trees(for_actions=True),
    st.sampled_from([*MODES, "own loop"]),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_spaces_and_modes_give_the_transitions_of_the_obvious_loop(
    obs, act, mode, seed, retiring
) -> None:
    make = functools.partial(WanderingEnv, obs, act)

    def seeds(slot: int, episode: int) -> int | None:
        return None if retiring and episode > 1 + slot else seed + seed_of(slot, episode)

    if mode == "own loop":
        cell: Any = GymnasiumCell(make, SLOTS, name="Many")
    else:
        cell = vector_cell(make, mode)
    rows = actions_for(act, 12, seed)
    assert collected(cell, rows, seeds) == obvious(make, rows, seeds)
    cell.close()


@given(st.sampled_from(MODES), st.integers(0, 2**31), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_chunks_of_vector_environments_are_those_of_our_own_loop(mode, seed, length) -> None:
    make = functools.partial(WanderingEnv, BOX, TWO, 5)
    ours, theirs = GymnasiumCell(make, SLOTS, name="One"), vector_cell(make, mode)
    episodes = {"ours": [0] * SLOTS, "theirs": [0] * SLOTS}

    def next_seed(whose: str, slot: int) -> int:
        episodes[whose][slot] += 1
        return seed + seed_of(slot, episodes[whose][slot])

    for cell in (ours, theirs):
        cell.reset([seed + seed_of(slot, 0) for slot in range(SLOTS)])
    for t in range(6):
        actions = np.stack([random_row(ours.spaces.action, SLOTS, seed + t)] * length, axis=1)
        a = ours.chunk_step(actions, functools.partial(next_seed, "ours"))
        b = theirs.chunk_step(actions, functools.partial(next_seed, "theirs"))
        for name in ("reward", "executed", "terminated", "truncated", "finished"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(a.observation["state"], b.observation["state"])
        if a.final_observation is not None:
            final = b.final_observation["state"]
            np.testing.assert_array_equal(a.final_observation["state"], final)


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
def test_vector_environments_in_processes_give_the_same(mode) -> None:
    make = functools.partial(WanderingEnv, spaces.Dict({"a": BOX, "b": TWO}), TWO)
    factory = functools.partial(AsyncVectorEnv, context="fork")
    cell = vector_cell(make, mode, kind=factory)
    try:
        rows = actions_for(TWO, 8, 3)
        assert collected(cell, rows, seed_of) == obvious(make, rows, seed_of)
    finally:
        cell.close()


def test_in_next_step_mode_no_action_is_ignored() -> None:
    cell = vector_cell(functools.partial(CountEnv, n=2), AutoresetMode.NEXT_STEP)
    cell.reset([0, 1, 2])
    counts = [
        cell.step(np.zeros(3, np.int64), next_seed).observation["state"][0, 0] for _ in range(6)
    ]
    assert counts == [1, 0, 1, 0, 1, 0]


class SelfResetting(gymnasium.vector.VectorEnv):
    """Counts to `n` in every slot and takes no mask, as natively batched simulators do."""

    def __init__(self, num_envs: int, mode: Any = AutoresetMode.SAME_STEP, **says: Any) -> None:
        self.num_envs, self.says = num_envs, says
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(0, 9, (1,), np.float32)
        self.single_action_space = TWO
        self.counts = np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert not options
        self.counts[:] = 0
        return self.counts, {}

    def step(self, actions: Any) -> Any:
        self.counts += 1
        ends = self.counts[:, 0] >= np.arange(2, self.num_envs + 2)
        infos = {"final_obs": list(self.counts.copy()), "_final_obs": ends}
        self.counts[ends] = 0
        answer = [self.counts, np.ones(self.num_envs), ends, np.zeros_like(ends), infos]
        for place, value in self.says.items():
            answer[int(place[1:])] = value
        return tuple(answer)


def test_without_masks_a_same_step_environment_goes_on_by_itself() -> None:
    cell = VectorCell(SelfResetting, 2, name="Self")
    cell.reset([0, 1])
    seen = []
    for _ in range(6):
        result = cell.step(np.zeros(2, np.int64), next_seed)
        final = result.final_observation
        last = None if final is None else final["state"].ravel().tolist()
        seen.append((result.observation["state"].ravel().tolist(), last))
    assert seen == [
        ([1, 1], None),
        ([0, 2], [2]),
        ([1, 0], [3]),
        ([0, 1], [2]),
        ([1, 2], None),
        ([0, 0], [2, 3]),
    ]


def test_without_masks_slots_are_neither_begun_at_will_nor_stopped_in_chunks() -> None:
    cell = VectorCell(SelfResetting, 2, name="Self")
    cell.reset([0, 1])
    with pytest.raises(BadInput, match=r"cannot act in chunks.*DISABLED"):
        cell.chunk_step(np.zeros((2, 3), np.int64), next_seed)
    cell.step(np.zeros(2, np.int64), next_seed)
    with pytest.raises(BadInput, match=r"cannot begin episodes at will.*reset_mask"):
        cell.begin(np.array([1]), [5])
    with pytest.raises(BadInput, match="resets itself in the next step, and not slot by slot"):
        VectorCell(functools.partial(SelfResetting, mode=AutoresetMode.NEXT_STEP), 2, name="Self")


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        ("p1", [1.0], "reward"),
        ("p2", np.zeros(2), "terminated"),
        ("p3", None, "truncated"),
        ("p0", np.zeros((2, 2), np.float32), "observation 'state'"),
        ("p0", np.full((2, 1), 99, np.float32), "observation 'state'"),
        ("p0", np.full((2, 1), np.nan, np.float32), "observation 'state'"),
        ("p1", np.array([0, np.inf]), "reward"),
    ],
)
def test_answers_that_do_not_fit_are_named(place, value, key) -> None:
    cell = VectorCell(functools.partial(SelfResetting, **{place: value}), 2, name="Self")
    cell.reset([0, 1])
    with pytest.raises(EnvMismatch) as it:
        cell.step(np.zeros(2, np.int64), next_seed)
    assert it.value.key == key


class Recording(SelfResetting):
    """Leaves resets to us, and notes the actions that it is given."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, AutoresetMode.DISABLED)
        self.seen: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.counts[True if options is None else options["reset_mask"]] = 0
        return self.counts, {}

    def step(self, actions: Any) -> Any:
        self.seen.append(actions.tolist())
        return super().step(actions)


def test_slots_that_nobody_looks_at_are_stepped_with_zeros() -> None:
    cell = VectorCell(Recording, 2, name="Rec")
    cell.reset([0, 1])
    for _ in range(3):
        result = cell.step(np.array([1, 1]), lambda slot: None)
    assert cell._env.seen == [[1, 1], [1, 1], [0, 1]]
    assert result.reward.tolist() == [0, 1]


@pytest.mark.process
def test_workers_that_forget_that_they_were_reset_are_refused() -> None:
    kind = functools.partial(AsyncVectorEnv, context="fork", shared_memory=False)
    with pytest.raises(BadInput, match="resets itself in the next step, and not slot by slot"):
        vector_cell(CountEnv, AutoresetMode.NEXT_STEP, kind=kind)


def test_missing_last_observations_are_named() -> None:
    cell = VectorCell(functools.partial(SelfResetting, p4={}), 2, name="Self", first_slot=4)
    cell.reset([0, 1])
    cell.step(np.zeros(2, np.int64), next_seed)
    with pytest.raises(EnvMismatch, match=r"slot 4: infos\['final_obs'\]: expected the last"):
        cell.step(np.zeros(2, np.int64), next_seed)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_names_the_slots(mode) -> None:
    cell = vector_cell(functools.partial(DieEnv, k=1), mode)
    cell.reset([0, 1, 2])
    cell.step(np.zeros(3, np.int64), next_seed)
    with pytest.raises(RuntimeError, match="died on purpose") as it:
        cell.step(np.zeros(3, np.int64), next_seed)
    assert it.value.__notes__ == ["raised by step of Many, slots 10 to 12, at steps [1, 1, 1]"]


def test_values_are_checked_with_slot_and_key() -> None:
    cell = vector_cell(functools.partial(NanEnv, k=0), AutoresetMode.DISABLED)
    cell.reset([0, 1, 2])
    with pytest.raises(EnvMismatch, match="slot 10: observation 'state': expected a"):
        cell.step(np.zeros(3, np.int64), next_seed)


def test_a_part_of_the_slots_cannot_be_stepped_alone() -> None:
    cell = vector_cell(CountEnv, AutoresetMode.DISABLED)
    cell.reset([0, 1, 2])
    with pytest.raises(ValueError, match="steps all slots"):
        cell.step(np.zeros(3, np.int64), next_seed, slots=np.array([1]))


def test_its_state_cannot_be_restored() -> None:
    with pytest.raises(EnvCannotRestore, match="it is a vector environment"):
        vector_cell(CountEnv, AutoresetMode.DISABLED).save_state()


def test_wrappers_of_vector_environments_are_applied() -> None:
    def negated(num_envs: int) -> Any:
        inner = SyncVectorEnv([CountEnv] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        one = spaces.Box(-9.0, 0.0, (1,), np.float32)
        return TransformObservations(inner, np.negative, single_observation_space=one)

    cell = VectorCell(negated, 2, name="Negative")
    cell.reset([0, 1])
    assert cell.step(np.zeros(2, np.int64), next_seed).observation["state"].ravel().tolist() == [
        -1,
        -1,
    ]


def test_the_registry_knows_a_factory_of_vectors_by_its_parameter() -> None:
    partial = functools.partial(gymnasium.make_vec, id="CartPole-v1", vectorization_mode="sync")
    described = references.describe(partial, where="test")
    assert describe_env(described)["time_limit"] == 500
    cell = make_cell(described, 4)
    assert isinstance(cell, VectorCell)
    assert cell.reset([1, 2, 3, 4])["state"].shape == (4, 4)
    cell.close()


def test_factories_that_do_not_make_a_vector_environment_of_that_size_are_refused() -> None:
    def single(num_envs: int) -> Any:
        return CountEnv()

    def fixed(num_envs: int) -> Any:
        return SyncVectorEnv([CountEnv] * 5)

    def silent(num_envs: int) -> Any:
        env = SyncVectorEnv([CountEnv] * num_envs)
        env.metadata = {}
        return env

    with pytest.raises(BadInput, match=r"must return a gymnasium.vector.VectorEnv; got a CountEnv"):
        VectorCell(single, 2, name="x")
    with pytest.raises(BadInput, match="of another size; expected 2; got 5"):
        VectorCell(fixed, 2, name="x")
    with pytest.raises(BadInput, match="do not say how it resets"):
        VectorCell(silent, 2, name="x")
