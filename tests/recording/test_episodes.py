"""What is written is read back; what is half written is not seen; memory stays bounded."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.recording import Recording, RecordingWriter
from rlinf_async.recording.layout import npy_header
from tests.recording.conftest import SPACES, fill, observation

ROOT = Path(__file__).parents[2]


def test_everything_that_was_written_is_read_back(demos):
    recording = Recording(demos)
    assert (recording.env, recording.fps, recording.spaces) == ("Press-v0", 20.0, SPACES)
    assert [episode.length for episode in recording] == [4, 1, 600]
    for number, episode in enumerate(recording):
        times = np.arange(episode.length)
        steps = episode.steps
        assert steps["obs/state"].tolist() == [[number, t, 0.5] for t in times]
        assert steps["action"][:, 0].tolist() == (2.0 * times).tolist()
        assert steps["executed_action"].dtype == np.float64
        assert steps["executed_action"][:, 0].tolist() == np.minimum(2.0 * times, 1.0).tolist()
        assert steps["reward"].tolist() == [0.1 * t + number for t in times]
        assert steps["terminated"].tolist() == [t == times[-1] and number != 1 for t in times]
        assert steps["truncated"].tolist() == [t == times[-1] and number == 1 for t in times]
        assert set(steps["version"]) == {7}
        assert episode.final["obs/state"].tolist() == [number, episode.length, 0.5]
        assert episode.observations("inner/count").tolist() == list(range(episode.length + 1))
        for t in (0, episode.length // 2, episode.length):
            assert np.array_equal(episode.frame("image", t), observation(number, t)["image"])
    described = Recording(demos).episode(0).described
    assert (described["seed"], described["task"]) == (100, "press")
    assert described["instruction"] == "press 0"
    assert described["return"] == pytest.approx(0.6)
    assert (described["success_once"], described["success_at_end"]) == (True, False)


def test_steps_are_mapped_and_images_streamed(demos):
    episode = Recording(demos).episode(2)
    assert isinstance(episode.steps, np.memmap)
    assert not episode.steps.flags.writeable
    frames = episode.frames("image")
    assert np.array_equal(next(frames), observation(2, 0)["image"])
    assert sum(1 for _ in frames) == 600


def test_plain_numpy_reads_the_steps(demos):
    steps = np.load(demos / "episodes" / "000002" / "steps.npy")
    assert len(steps) == 600
    assert steps["reward"][599] == pytest.approx(61.9)


def test_a_killed_writer_leaves_the_whole_episodes_and_no_half_one(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from rlinf_async.recording import RecordingWriter\n"
        "from tests.recording.conftest import SPACES, fill\n"
        "writer = RecordingWriter(sys.argv[1], spaces=SPACES, env='Press-v0', fps=20.0)\n"
        "fill(writer, 0, 4); fill(writer, 1, 700, finish=False)\n"
        "print('written', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "demos")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert Recording(tmp_path / "demos").numbers == (0,)
    assert Recording(tmp_path / "demos").episode(0).length == 4
    drafts = list((tmp_path / "demos" / "episodes").glob(".draft-*"))
    assert len(drafts) == 1
    again = RecordingWriter(tmp_path / "demos", spaces=SPACES, env="Press-v0", fps=20.0)
    assert not drafts[0].exists()
    episode = again.open(seed=3)
    episode.finish(observation(1, 0))
    assert Recording(tmp_path / "demos").numbers == (0, 1)


def test_drafts_of_a_living_writer_are_let_alone(demos):
    writer = RecordingWriter(demos, spaces=SPACES, env="Press-v0", fps=20.0)
    half = fill(writer, 3, 2, finish=False)
    RecordingWriter(demos, spaces=SPACES, env="Press-v0", fps=20.0)
    half.finish(observation(3, 2))
    assert Recording(demos).episode(3).length == 2


def test_a_discarded_episode_leaves_nothing(demos):
    writer = RecordingWriter(demos, spaces=SPACES, env="Press-v0", fps=20.0)
    fill(writer, 3, 2, finish=False).discard()
    assert sorted(p.name for p in (demos / "episodes").iterdir()) == ["000000", "000001", "000002"]


def test_what_is_written_is_a_copy(tmp_path):
    writer = RecordingWriter(tmp_path, spaces=SPACES, env="Press-v0")
    seen, episode = observation(0, 0), writer.open(seed=0)
    for t in range(3):
        seen["state"][1] = t
        seen["image"][...] = t
        action = np.zeros(2)
        episode.add(seen, action, action, reward=0.0, terminated=False, truncated=False)
    episode.finish(seen)
    found = Recording(tmp_path).episode(0)
    assert found.steps["obs/state"][:, 1].tolist() == [0, 1, 2]
    assert found.observations("image")[:, 0, 0, 0].tolist() == [0, 1, 2, 2]


def test_chunks_keep_the_reward_of_every_simulated_step(tmp_path):
    action = dataclasses.replace(SPACES.action, shape=(4, 2), low=(-1.0,) * 8, high=(1.0,) * 8)
    spaces = dataclasses.replace(SPACES, action=action, chunk=4)
    episode = RecordingWriter(tmp_path, spaces=spaces, env="Press-v0").open(seed=0)
    reward, chunk = np.array([1.0, 2.0, 4.0, 0.0]), np.arange(8.0).reshape(4, 2)
    episode.add(
        observation(0, 0), chunk, chunk, reward=reward, executed=3, terminated=True, truncated=False
    )
    episode.finish(observation(0, 3))
    found = Recording(tmp_path).episode(0)
    assert found.steps["reward"].tolist() == [reward.tolist()]
    assert found.described["simulated_steps"] == 3
    assert found.described["return"] == 7.0


def test_observations_that_are_all_images_and_discrete_actions(tmp_path):
    spaces = Spaces(
        observation=(SPACES.observation[1],),
        action=ActionSpec(kind="discrete", shape=(), dtype="int32", count=3, start=5),
    )
    episode = RecordingWriter(tmp_path, spaces=spaces, env="Pixels-v0").open(seed=0)
    episode.add(observation(0, 0), 2, 7, reward=0.0, terminated=True, truncated=False)
    episode.finish(observation(0, 1))
    found = Recording(tmp_path).episode(0)
    assert (found.steps["action"][0], found.steps["executed_action"][0]) == (2, 7)
    assert found.observations("image").shape == (2, 6, 8, 3)


@pytest.mark.parametrize("file", ["steps.npy", "images-0.bin", "episode.json"])
def test_a_damaged_episode_is_named(demos, file):
    path = demos / "episodes" / "000000" / file
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadInput, match=r"000000: the episode is incomplete"):
        Recording(demos).episode(0)
    assert Recording(demos).episode(1).length == 1


def test_another_version_is_refused(demos):
    path = demos / "recording.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 2}))
    with pytest.raises(BadInput, match=r"expected rlinf_async\.recording 1; got .* 2"):
        Recording(demos)
    with pytest.raises(BadInput, match="holds another recording"):
        RecordingWriter(demos, spaces=SPACES, env="Press-v0", fps=20.0)
    with pytest.raises(BadInput, match="is no recording"):
        Recording(demos / "episodes")


def test_episodes_are_never_overwritten_and_never_mixed(demos):
    writer = RecordingWriter(demos, spaces=SPACES, env="Press-v0", fps=20.0)
    with pytest.raises(BadInput, match="episode 2 is there"):
        writer.open(2, seed=0)
    other = dataclasses.replace(SPACES, observation=SPACES.observation[:1])
    with pytest.raises(BadInput, match=r"holds another recording \(spaces, images differ\)"):
        RecordingWriter(demos, spaces=other, env="Press-v0", fps=20.0)
    with pytest.raises(BadInput, match=r"no observation 'imag'.*did you mean 'image'"):
        Recording(demos).episode(0).observations("imag")


def test_memory_does_not_grow_with_the_episode(tmp_path):
    spaces = dataclasses.replace(
        SPACES, observation=(ArraySpec(name="state", shape=(4096,), dtype="float32"),)
    )
    episode = RecordingWriter(tmp_path, spaces=spaces, env="Long-v0").open(seed=0)
    seen, action = {"state": np.zeros(4096, np.float32)}, np.zeros(2)
    tracemalloc.start()
    for _ in range(1000):
        episode.add(seen, action, action, reward=0.0, terminated=False, truncated=False)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    episode.finish(seen)
    assert peak_bytes < 4 << 20  # the whole episode is 16 MiB
    assert Recording(tmp_path).episode(0).length == 1000


@pytest.mark.parametrize("field", ["a", "ä"])
def test_a_header_is_as_long_for_any_count_and_numpy_reads_it(tmp_path, field):
    dtype = np.dtype([(field, "f4", (3,)), ("b", "?")], align=True)
    assert len({len(npy_header(dtype, count)) for count in (0, 1, 999, 10**18)}) == 1
    assert len(npy_header(dtype, 0)) % 64 == 0
    values = np.zeros(2, dtype)
    values[field] = 4.0
    (tmp_path / "x.npy").write_bytes(npy_header(dtype, 2) + values.tobytes())
    found = np.load(tmp_path / "x.npy")
    assert found.dtype == dtype
    assert found[field].tolist() == [[4.0] * 3] * 2
