"""Whatever the spaces, the lengths and the order of writing: what goes in comes out."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces, chunked
from rlinf_async.recording import Recording, RecordingWriter
from rlinf_async.recording.layout import executed_dtype

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "int64", "uint8", "bool", "int16"])
ACTIONS = st.sampled_from(
    [
        ActionSpec(
            kind="continuous", shape=(2,), dtype="float64", low=(-1.0,) * 2, high=(1.0,) * 2
        ),
        ActionSpec(kind="discrete", shape=(), dtype="int64", count=3, start=-1),
        ActionSpec(kind="multi_discrete", shape=(2,), dtype="int32", counts=(2, 3), starts=(0, 4)),
        ActionSpec(kind="multi_binary", shape=(2, 2), dtype="int8"),
    ]
)


@st.composite
def spaces(draw: st.DrawFn) -> Spaces:
    names = draw(st.lists(st.text("abcä/. ", min_size=1, max_size=4), max_size=4, unique=True))
    chunk = draw(st.integers(1, 3))
    return Spaces(
        observation=tuple(
            ArraySpec(name=name, shape=draw(SHAPES), dtype=draw(DTYPES)) for name in names
        ),
        action=chunked(draw(ACTIONS), chunk),
        chunk=chunk,
    )


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def step(rng: np.random.Generator, of: Spaces) -> dict[str, object]:
    action = of.action
    return {
        "observation": look(rng, of),
        "action": values(rng, action.shape, action.row_dtype),
        "executed_action": values(rng, action.shape, executed_dtype(of)),
        "reward": rng.random(of.chunk) if of.chunk > 1 else float(rng.random()),
        "terminated": bool(rng.integers(2)),
        "truncated": bool(rng.integers(2)),
        "executed": int(rng.integers(1, of.chunk + 1)),
        "version": int(rng.integers(100)),
    }


def look(rng: np.random.Generator, of: Spaces) -> dict[str, np.ndarray]:
    return {spec.name: values(rng, spec.shape, spec.dtype) for spec in of.observation}


@settings(max_examples=60, deadline=None)
@given(spaces(), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 2**32))
def test_interleaved_episodes_come_back_as_they_were_written(of, lengths, seed):
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        writer = RecordingWriter(folder, spaces=of, env="E")
        episodes = [writer.open(seed=number) for number in range(len(lengths))]
        written: list[list[dict[str, object]]] = [[] for _ in lengths]
        turns = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
        for number in turns.tolist():
            written[number].append(step(rng, of))
            episodes[number].add(**written[number][-1])
        finals = [look(rng, of) for _ in lengths]
        for number in rng.permutation(len(lengths)).tolist():
            episodes[number].finish(finals[number])
        check(Path(folder), of, written, finals)


def check(folder, of, written, finals) -> None:
    recording = Recording(folder)
    assert recording.spaces == of
    assert recording.numbers == tuple(range(len(written)))
    for episode, steps, final in zip(recording, written, finals, strict=True):
        assert episode.length == len(steps)
        for name in ("action", "executed_action", "reward", "terminated", "truncated", "version"):
            expected = [each[name] for each in steps]
            assert np.array_equal(
                episode.steps[name], np.array(expected).reshape(-1, *shape_of(episode, name))
            )
        for spec in of.observation:
            expected = [each["observation"][spec.name] for each in steps] + [final[spec.name]]
            found = episode.observations(spec.name)
            assert found.dtype == spec.dtype
            assert np.array_equal(found, np.array(expected))


def shape_of(episode, name: str) -> tuple[int, ...]:
    return episode.steps.dtype[name].shape
