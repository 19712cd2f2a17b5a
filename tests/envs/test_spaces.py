"""Gymnasium's spaces as flat named observations and as actions, there and back."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import orjson
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipAction
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.envs.contract import EnvMismatch
from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionPart, ActionSpec, Spaces, chunked
from tests.fixtures.envs import CountEnv, SpaceEnv
from tests.fixtures.generated_spaces import random_row, space_trees
from tests.fixtures.seeds import next_seed

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)


def spaced(obs: Any, act: Any = TWO, count: int = 2) -> GymnasiumCell:
    factory = functools.partial(SpaceEnv, obs=obs, act=act)
    cell = GymnasiumCell(factory, count, name="Tiny", first_slot=10)
    cell.reset(range(count))
    return cell


def idle(cell: GymnasiumCell) -> Any:
    action = cell.spaces.action
    return cell.step(np.zeros((cell.slots, *action.shape), action.row_dtype), next_seed)


@pytest.mark.parametrize(
    ("space", "specs"),
    [
        (spaces.Box(-1, 1, (3,), np.float64), [("state", (3,), "float32")]),
        (spaces.Box(-1, 1, (3,), np.float16), [("state", (3,), "float32")]),
        (spaces.Box(-np.inf, np.inf, (), np.float32), [("state", (), "float32")]),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), [("image", (8, 8, 3), "uint8")]),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), [("image", (3, 8, 8), "uint8")]),
        (spaces.Box(0, 255, (128,), np.uint8), [("state", (128,), "uint8")]),
        (spaces.Box(-5, 5, (2, 2), np.int16), [("state", (2, 2), "int16")]),
        (spaces.Box(0, 1, (4,), np.bool_), [("state", (4,), "bool")]),
        (spaces.Discrete(4, start=-1), [("state", (), "int64")]),
        (spaces.MultiDiscrete([3, 4], start=[1, -2]), [("state", (2,), "int64")]),
        (spaces.MultiDiscrete([[3, 4]], dtype=np.uint8), [("state", (1, 2), "uint8")]),
        (spaces.MultiBinary(3), [("state", (3,), "int8")]),
        (spaces.Text(6), [("text", (6,), "uint8")]),
        (
            spaces.Dict({"arm": spaces.Dict({"pose": BOX, "on": TWO}), "goal": BOX}),
            [("arm/on", (), "int64"), ("arm/pose", (2,), "float32"), ("goal", (2,), "float32")],
        ),
        (spaces.Tuple((BOX, TWO)), [("0", (2,), "float32"), ("1", (), "int64")]),
        (
            spaces.Dict({"a": spaces.Tuple((spaces.Text(3), spaces.Dict({"b": TWO})))}),
            [("a/0", (3,), "uint8"), ("a/1/b", (), "int64")],
        ),
    ],
    ids=str,
)
def test_observation_spaces_become_flat_named_arrays(space, specs) -> None:
    cell = spaced(space, count=3)
    found = sorted((o.name, o.shape, o.dtype) for o in cell.spaces.observation)
    assert found == sorted(specs)
    result = idle(cell)
    for name, shape, dtype in specs:
        assert result.observation[name].shape == (3, *shape)
        assert result.observation[name].dtype == dtype


@pytest.mark.parametrize(
    ("space", "counts", "starts"),
    [
        (spaces.Discrete(4), (4,), ()),
        (spaces.Discrete(4, start=-1), (4,), (-1,)),
        (spaces.MultiDiscrete([[3, 4]], start=[[1, 0]]), (3, 4), (1, 0)),
        (spaces.MultiBinary(3), (2, 2, 2), ()),
        (spaces.MultiBinary((100, 100)), (), ()),
        (spaces.Box(0, 255, (2,), np.uint8), (), ()),
    ],
    ids=str,
)
def test_numbers_of_values_are_declared_where_they_are_few(space, counts, starts) -> None:
    (spec,) = spaced(space).spaces.observation
    assert (spec.counts, spec.starts) == (counts, starts)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(BOX),
        spaces.Graph(BOX, None),
        spaces.OneOf([BOX, TWO]),
        spaces.Dict({"a": BOX, "b": spaces.Sequence(TWO)}),
    ],
    ids=str,
)
def test_other_observation_spaces_are_refused(space) -> None:
    with pytest.raises(BadInput, match=r"is not supported; expected Box.*TransformObservation"):
        spaced(space)


def test_names_that_collide_when_flattened_are_refused() -> None:
    collide = spaces.Dict({"a/b": BOX, "a": spaces.Dict({"b": BOX})})
    with pytest.raises(BadInput, match="same flattened name"):
        spaced(collide)
    with pytest.raises(BadInput, match="same flattened name"):
        spaced(BOX, collide)


class Telling(CountEnv):
    """Observes `text`, whatever its space says."""

    def __init__(self, text: Any, space: Any) -> None:
        super().__init__()
        self.text, self.observation_space = text, space

    def observe(self) -> Any:
        return self.text


def told(text: Any, space: Any) -> Any:
    cell = GymnasiumCell(functools.partial(Telling, text, space), 1, name="Tell")
    return bytes(cell.reset([0])["text"][0])


def test_texts_are_utf_8_bytes_filled_up_with_zeros() -> None:
    assert told("abc", spaces.Text(5)) == b"abc\0\0"
    assert told("", spaces.Text(5, min_length=0)) == b"\0" * 5
    # Room for the widest declared character at every place.
    assert told("äa€", spaces.Text(3, charset="äa€")) == "äa€".encode().ljust(9, b"\0")


def test_a_text_that_does_not_fit_is_named() -> None:
    with pytest.raises(EnvMismatch, match="'text': expected at most 3 bytes of UTF-8; got 4"):
        told("abca", spaces.Text(3))
    with pytest.raises(EnvMismatch, match="expected characters of its space; got 'é'"):
        told("é", spaces.Text(3))
    with pytest.raises(EnvMismatch, match="expected a text; got a list"):
        told(["a"], spaces.Text(3))
    with pytest.raises(BadInput, match="NUL"):
        told("a", spaces.Text(3, charset="a\0"))


@pytest.mark.parametrize("start", [-1, 0, 3])
def test_choices_begin_at_the_start_of_the_space(start) -> None:
    cell = spaced(BOX, spaces.Discrete(3, start=start), count=3)
    cell.step(np.array([0, 1, 2]), next_seed)
    assert [env.actions for env in cell._envs] == [[start], [start + 1], [start + 2]]
    assert (cell.spaces.action.count, cell.spaces.action.start) == (3, start)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_continuous_actions_are_cast_and_clipped_into_the_space(dtype, shape) -> None:
    # 0.1 rounds up in float32: casting after clipping would leave a float64 space.
    space = spaces.Box(-0.1, 0.1, shape, dtype)
    cell = spaced(BOX, space)
    for value in (-7.0, 0.05, 0.1, 7.0):
        cell.step(np.full((2, *shape), value, np.float32), next_seed)
    for env in cell._envs:
        assert len(env.actions) == 4
        assert all(action.dtype == dtype for action in env.actions)


@pytest.mark.parametrize(
    ("space", "kind", "shape", "counts", "starts"),
    [
        (spaces.MultiDiscrete([2, 5], start=[1, -3]), "multi_discrete", (2,), (2, 5), (1, -3)),
        (spaces.MultiDiscrete([[2], [5]]), "multi_discrete", (2, 1), (2, 5), (0, 0)),
        (spaces.Box(-3, 9, (2,), np.int32), "multi_discrete", (2,), (13, 13), (-3, -3)),
        (spaces.Box(0, 255, (), np.uint8), "multi_discrete", (), (256,), (0,)),
        (spaces.MultiBinary((2, 2)), "multi_binary", (2, 2), (), ()),
        (spaces.Box(0, 1, (3,), np.bool_), "multi_binary", (3,), (), ()),
    ],
    ids=str,
)
def test_choices_of_every_kind_are_described_and_reach_the_environment(
    space, kind, shape, counts, starts
) -> None:
    cell = spaced(BOX, space)
    spec = cell.spaces.action
    found = (spec.kind, spec.shape, spec.counts, spec.starts, spec.row_dtype)
    assert found == (kind, shape, counts, starts, "int64")
    highest = np.array(counts or [2] * math.prod(shape)).reshape(shape) - 1
    cell.step(np.stack([np.zeros(shape, np.int64), highest]), next_seed)
    lowest, most = (np.asarray(env.actions[0]).astype(np.int64) for env in cell._envs)
    np.testing.assert_array_equal(lowest.ravel(), starts or np.zeros(lowest.size))
    np.testing.assert_array_equal(most - lowest, highest)


def test_mixed_actions_are_named_parts_in_one_row() -> None:
    space = spaces.Dict(
        {
            "arm": spaces.Dict({"move": BOX, "grip": spaces.Discrete(3, start=5)}),
            "keys": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([4], start=[2]))),
        }
    )
    cell = spaced(BOX, space)
    spec = cell.spaces.action
    assert [(part.name, part.spec.kind, part.size) for part in spec.parts] == [
        ("arm/grip", "discrete", 1),
        ("arm/move", "continuous", 2),
        ("keys/0", "multi_binary", 2),
        ("keys/1", "multi_discrete", 1),
    ]
    assert (spec.kind, spec.shape, spec.row_dtype) == ("mixed", (6,), "float32")
    cell.step(np.array([[2, 0.5, -9, 1, 0, 3], [0, 0, 0.25, 0, 1, 0]], np.float32), next_seed)
    first, second = (env.actions[0] for env in cell._envs)
    assert first["arm"]["grip"] == 7
    assert first["arm"]["move"].tolist() == [0.5, -1.0]
    assert first["keys"][0].tolist() == [1, 0]
    assert first["keys"][1].tolist() == [5]
    assert second["arm"]["grip"] == 5
    assert isinstance(second["keys"], tuple)


@given(space_trees(for_actions=True), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_any_row_becomes_an_action_that_the_space_contains(space, seed) -> None:
    cell = spaced(BOX, space, count=3)  # SpaceEnv refuses what its space does not contain
    spec = cell.spaces.action
    assert Spaces.from_json(orjson.loads(orjson.dumps(cell.spaces.to_json()))) == cell.spaces
    cell.step(random_row(spec, 3, seed), next_seed)
    assert all(len(env.actions) == 1 for env in cell._envs)


@given(space_trees(for_actions=False))
@settings(max_examples=60, deadline=None)
def test_any_observation_arrives_as_it_was_sampled(space) -> None:
    cell = spaced(space, count=2)
    observation = idle(cell).observation
    for slot, env in enumerate(cell._envs):
        for spec, leaf in zip(cell.spaces.observation, cell._slots[slot]._leaves, strict=True):
            value = env.last
            for step in leaf.path:
                value = value[step]
            if isinstance(value, str):
                assert bytes(observation[spec.name][slot]).rstrip(b"\0").decode() == value
            else:
                expected = np.asarray(value).astype(spec.dtype)
                np.testing.assert_array_equal(observation[spec.name][slot], expected)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(TWO),
        spaces.OneOf([TWO, BOX]),
        spaces.Dict({"a": BOX, "b": spaces.Text(3)}),
    ],
    ids=str,
)
def test_other_action_spaces_are_refused(space) -> None:
    with pytest.raises(BadInput, match="is not supported; expected Box of floats with finite"):
        spaced(BOX, space)


def test_an_action_with_more_choices_than_a_policy_can_have_outputs_is_refused() -> None:
    for space in (spaces.Box(-(2**62), 2**62, (2,), np.int64), spaces.Discrete(10**6)):
        with pytest.raises(BadInput, match="too many choices; expected at most 65,536"):
            spaced(BOX, space)


def test_an_unbounded_action_is_refused_with_the_wrapper_to_use() -> None:
    endless = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(BadInput, match=r"no finite bounds.*TransformAction"):
        spaced(BOX, endless)
    with pytest.raises(BadInput, match=r"'arm/move' has no finite bounds.*TransformAction"):
        spaced(BOX, spaces.Dict({"arm": spaces.Dict({"move": endless})}))
    with pytest.raises(BadInput, match="leave out ClipAction"):
        GymnasiumCell(lambda: ClipAction(CountEnv(action="continuous")), 1, name="Clip")
    assert spaced(endless).spaces.observation


class TestChunked:
    def test_choices_become_a_row_of_choices(self) -> None:
        one = ActionSpec(kind="discrete", shape=(), dtype="int32", count=3, start=-1)
        assert chunked(one, 4) == ActionSpec(
            kind="multi_discrete", shape=(4,), dtype="int32", counts=(3,) * 4, starts=(-1,) * 4
        )

    def test_bounds_counts_and_starts_are_repeated_in_the_order_of_the_row(self) -> None:
        box = ActionSpec(
            kind="continuous", shape=(2,), dtype="float32", low=(-1.0, -2.0), high=(1.0, 2.0)
        )
        found = chunked(box, 3)
        assert found.shape == (3, 2)
        assert np.array(found.low).reshape(3, 2).tolist() == [[-1.0, -2.0]] * 3
        many = ActionSpec(
            kind="multi_discrete", shape=(2,), dtype="int64", counts=(3, 4), starts=(0, 1)
        )
        found = chunked(many, 2)
        assert (found.shape, found.counts, found.starts) == ((2, 2), (3, 4, 3, 4), (0, 1, 0, 1))
        bits = ActionSpec(kind="multi_binary", shape=(2, 2), dtype="int8")
        assert chunked(bits, 5).shape == (5, 2, 2)

    def test_each_step_of_a_mixed_chunk_is_a_row_of_all_parts(self) -> None:
        choice = ActionSpec(kind="discrete", shape=(), dtype="int64", count=3)
        bits = ActionSpec(kind="multi_binary", shape=(2,), dtype="int8")
        parts = (ActionPart(name="a", spec=choice), ActionPart(name="b", spec=bits))
        mixed = ActionSpec(kind="mixed", shape=(3,), dtype="float32", parts=parts)
        assert (chunked(mixed, 4).shape, chunked(mixed, 4).parts) == ((4, 3), parts)

    def test_one_step_has_no_axis_of_chunks(self) -> None:
        choice = ActionSpec(kind="discrete", shape=(), dtype="int64", count=3)
        assert chunked(choice, 1) is choice
        with pytest.raises(ValueError, match="at least one action"):
            chunked(choice, 0)
