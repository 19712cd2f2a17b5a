"""Recorded episodes, Minari's files and D4RL's arrays become the same steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlinf_async.algorithms.off_policy import Demonstrations
from rlinf_async.algorithms.off_policy.demonstrations import demonstration_store
from rlinf_async.algorithms.off_policy.store import Store
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.recording import RecordingWriter

SPACES = Spaces(
    observation=(ArraySpec(name="state", shape=(2,), dtype="float32"),),
    action=ActionSpec(kind="continuous", shape=(1,), dtype="float32", low=(-2.0,), high=(6.0,)),
)
LENGTHS = (3, 1, 4)
"""The second episode is truncated, the others end."""


def seen(number: int, t: int) -> np.ndarray:
    return np.array([number, t], np.float32)


def steps_of(number: int):
    """Observation, action (in [-2, 6]), reward, terminated, truncated of an episode's steps."""
    for t in range(LENGTHS[number]):
        last = t == LENGTHS[number] - 1
        action = np.array([2.0 + t], np.float32)
        yield seen(number, t), action, 10.0 * number + t, last and number != 1, last and number == 1


def recording(folder: Path) -> Path:
    writer = RecordingWriter(folder, spaces=SPACES, env="Test-v0")
    for number, length in enumerate(LENGTHS):
        episode = writer.open(number, seed=number)
        for obs, action, reward, terminated, truncated in steps_of(number):
            episode.add(
                {"state": obs},
                np.arctanh((action - 2.0) / 4.0),
                action,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                success=False,
                version=0,
            )
        episode.finish({"state": seen(number, length)})
    return folder


def minari(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    path = folder / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for number, length in enumerate(LENGTHS):
            group = file.create_group(f"episode_{number}")
            columns = list(zip(*steps_of(number), strict=True))
            group["observations"] = np.stack([*columns[0], seen(number, length)])
            names = ("actions", "rewards", "terminations", "truncations")
            for name, column in zip(names, columns[1:], strict=True):
                group[name] = np.stack(column)
    return path


def d4rl(folder: Path, *, successors: bool) -> Path:
    h5py = pytest.importorskip("h5py")
    path = folder / "flat.hdf5"
    rows = [step for number in range(3) for step in steps_of(number)]
    with h5py.File(path, "w") as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            file[name] = np.stack(column)
        if successors:
            ends = [seen(n, t + 1) for n, length in enumerate(LENGTHS) for t in range(length)]
            file["next_observations"] = np.stack(ends)
    return path


def steps_in(store: Store) -> dict[str, np.ndarray]:
    index = np.flatnonzero(store.arrays["valid"])
    return store.transitions(index, steps=1, gamma=0.5)


def check(store: Store, numbers: tuple[int, ...]) -> None:
    found, at = steps_in(store), 0
    for number in numbers:
        for t, (obs, action, reward, terminated, _) in enumerate(steps_of(number)):
            np.testing.assert_array_equal(found["obs/state"][at], obs)
            assert found["action"][at] == pytest.approx((action - 2.0) / 4.0)
            assert found["reward"][at] == reward
            assert found["discount"][at] == (0.0 if terminated else 0.5)
            if not terminated:
                np.testing.assert_array_equal(found["next/state"][at], seen(number, t + 1))
            at += 1
    assert at == len(found["reward"])


def test_a_recording(tmp_path):
    path = str(recording(tmp_path / "demos"))
    check(demonstration_store(Demonstrations(path=path), SPACES), (0, 1, 2))
    check(demonstration_store(Demonstrations(path=path, episodes=1), SPACES), (0,))


def test_minaris_format(tmp_path):
    check(demonstration_store(Demonstrations(path=str(minari(tmp_path))), SPACES), (0, 1, 2))


def test_d4rls_arrays_with_successors_and_without(tmp_path):
    whole = Demonstrations(path=str(d4rl(tmp_path, successors=True)))
    check(demonstration_store(whole, SPACES), (0, 1, 2))
    # The truncated episode's one step has no successor in the file: it is left out.
    flat = Demonstrations(path=str(d4rl(tmp_path, successors=False)))
    check(demonstration_store(flat, SPACES), (0, 2))


def test_what_is_no_demonstration_of_this_task_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there are no demonstrations"):
        demonstration_store(Demonstrations(path=str(tmp_path / "none")), SPACES)
    other = Spaces(
        observation=(ArraySpec(name="state", shape=(3,), dtype="float32"),), action=SPACES.action
    )
    for path in (recording(tmp_path / "demos"), minari(tmp_path)):
        with pytest.raises(BadInput, match="observation"):
            demonstration_store(Demonstrations(path=str(path)), other)
