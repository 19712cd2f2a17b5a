"""The exported folder has LeRobot's files, columns and numbers; pyarrow and av read them back."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec
from rlinf_async.recording import Recording, RecordingWriter, export_lerobot
from rlinf_async.recording.feature_stats import FeatureStats
from rlinf_async.recording.lerobot_files import DataFiles, VideoFiles
from tests.recording.conftest import SPACES, fill, observation

parquet = pytest.importorskip("pyarrow.parquet")
av = pytest.importorskip("av")

IMAGE = "observation.images.image"
KEYS = {
    "observation.state", "observation.inner.count", "action", "raw_action",
    "next.reward", "next.done", "next.success",
    "timestamp", "frame_index", "episode_index", "index", "task_index",
}  # fmt: skip


@pytest.fixture
def exported(demos, tmp_path) -> Path:
    return export_lerobot(demos, tmp_path / "out", robot_type="press")


def test_the_info_names_every_feature_and_count(exported):
    info = json.loads((exported / "meta" / "info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 605, 3)
    assert (info["fps"], info["robot_type"]) == (20, "press")
    assert info["splits"] == {"train": "0:3"}
    features = info["features"]
    assert set(features) == KEYS | {IMAGE}
    assert features["action"] == {"dtype": "float64", "shape": [2], "names": None}
    assert features["observation.inner.count"]["shape"] == [1]
    assert features[IMAGE]["dtype"] == "video"
    assert features[IMAGE]["shape"] == [6, 8, 3]
    assert not [name for name in features if "/" in name]


def test_the_rows_are_those_of_the_recording(exported, demos):
    info = json.loads((exported / "meta" / "info.json").read_text())
    table = parquet.read_table(exported / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(table.column_names) == KEYS
    for name in KEYS:
        arrow = table.schema.field(name).type
        width = info["features"][name]["shape"][0]
        assert getattr(arrow, "list_size", 1) == width, name
        plain = arrow.value_type if width > 1 else arrow
        assert str(plain.to_pandas_dtype().__name__).rstrip("_") == info["features"][name]["dtype"]
    rows = table.to_pydict()
    assert rows["index"] == list(range(605))
    assert rows["episode_index"] == [0] * 4 + [1] + [2] * 600
    assert rows["frame_index"][-1] == 599
    assert rows["timestamp"][3] == pytest.approx(3 / 20)
    steps = Recording(demos).episode(2).steps
    assert np.array_equal(rows["action"][5:], steps["executed_action"])
    assert np.array_equal(rows["raw_action"][5:], steps["action"])
    assert rows["next.done"] == [False] * 3 + [True, True] + [False] * 599 + [True]
    assert rows["next.reward"][5:] == pytest.approx(steps["reward"].tolist())


def test_episodes_and_tasks_tell_where_everything_lies(exported):
    episodes = parquet.read_table(exported / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["length"] for row in episodes] == [4, 1, 600]
    assert [row["dataset_from_index"] for row in episodes] == [0, 4, 5]
    assert [row["dataset_to_index"] for row in episodes] == [4, 5, 605]
    assert [row["tasks"] for row in episodes] == [["press 0"], ["press 1"], ["press 2"]]
    ends = [row[f"videos/{IMAGE}/to_timestamp"] for row in episodes]
    assert ends == pytest.approx([4 / 20, 5 / 20, 605 / 20])
    assert episodes[2]["stats/observation.state/max"] == [2.0, 599.0, 0.5]
    tasks = parquet.read_table(exported / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0, 1, 2], "task": ["press 0", "press 1", "press 2"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_the_video_holds_the_frames_of_every_step(exported):
    with av.open(str(exported / "videos" / IMAGE / "chunk-000" / "file-000.mp4")) as container:
        assert container.streams.video[0].average_rate == 20
        frames = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
    assert len(frames) == 605
    for row, (number, t) in ((3, (0, 3)), (4, (1, 0)), (5, (2, 0)), (604, (2, 599))):
        expected = observation(number, t)["image"].astype(int)
        assert np.abs(frames[row].astype(int) - expected).max() < 8


def test_statistics_are_those_of_all_rows(exported, demos):
    stats = json.loads((exported / "meta" / "stats.json").read_text())
    assert set(stats) == KEYS | {IMAGE}
    actions = np.concatenate([episode.steps["executed_action"] for episode in Recording(demos)])
    found = stats["action"]
    assert found["mean"] == pytest.approx(actions.mean(axis=0))
    assert found["std"] == pytest.approx(actions.std(axis=0), abs=1e-12)
    assert (found["min"], found["max"]) == ([0.0, -0.5], [1.0, -0.5])
    assert found["count"] == [605]
    assert np.shape(stats[IMAGE]["mean"]) == (3, 1, 1)
    assert 0.0 <= stats[IMAGE]["mean"][0][0][0] <= 1.0


def test_merged_statistics_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    samples = rng.normal(1e6, 1.0, (1000, 3))
    parts = [FeatureStats.of(part) for part in np.split(samples, [1, 10, 700])]
    total = parts[0]
    for part in parts[1:]:
        total = total.merged(part)
    expected = FeatureStats.of(samples)
    assert total.count == 1000
    assert np.allclose(total.mean, expected.mean, rtol=1e-14)
    assert np.allclose(total.squares, expected.squares, rtol=1e-7)
    assert np.array_equal(total.least, samples.min(axis=0))


def test_large_data_sets_are_cut_into_files(tmp_path):
    data = DataFiles(tmp_path, file_bytes=1000)
    places = [data.add({"x": np.zeros((100, 1))}) for _ in range(3)]
    data.close()
    assert [place["data/file_index"] for place in places] == [0, 1, 2]
    assert len(list((tmp_path / "data" / "chunk-000").iterdir())) == 3
    video = VideoFiles(tmp_path, "cam", fps=10, file_bytes=10)
    starts = []
    rng = np.random.default_rng(0)
    for _ in range(2):
        starts.append(video.begin())
        for _ in range(200):
            video.add(rng.integers(0, 255, (64, 64, 3), np.uint8))
        video.end()
    video.close()
    assert [start["videos/cam/file_index"] for start in starts] == [0, 1]
    assert [start["videos/cam/from_timestamp"] for start in starts] == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(6, 8), (1, 6, 8), (6, 8, 1), (3, 6, 8)])
def test_images_of_any_layout_become_colour_video(tmp_path, shape):
    spaces = dataclasses.replace(
        SPACES, observation=(ArraySpec(name="image", shape=shape, dtype="uint8"),)
    )
    episode = RecordingWriter(tmp_path / "in", spaces=spaces, env="E", fps=10).open(seed=0)
    seen = {"image": np.full(shape, 77, np.uint8)}
    action = np.zeros(2)
    episode.add(seen, action, action, reward=0.0, terminated=True, truncated=False)
    episode.finish(seen)
    out = export_lerobot(tmp_path / "in", tmp_path / "out")
    with av.open(str(out / "videos" / IMAGE / "chunk-000" / "file-000.mp4")) as container:
        (frame,) = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
    assert frame.shape == (6, 8, 3)
    assert np.abs(frame.astype(int) - 77).max() < 4


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(demos, tmp_path):
    with pytest.raises(BadInput, match="exists"):
        export_lerobot(demos, demos)
    RecordingWriter(tmp_path / "empty", spaces=SPACES, env="E")
    with pytest.raises(BadInput, match="no complete episodes"):
        export_lerobot(tmp_path / "empty", tmp_path / "out")
    fill(RecordingWriter(tmp_path / "rateless", spaces=SPACES, env="E"), 0, 2)
    with pytest.raises(BadInput, match=r"frames per second.*give fps="):
        export_lerobot(tmp_path / "rateless", tmp_path / "out")
    stacked = ArraySpec(name="image", shape=(6, 8, 12), dtype="uint8")
    spaces = dataclasses.replace(SPACES, observation=(stacked,))
    writer = RecordingWriter(tmp_path / "stacked", spaces=spaces, env="E", fps=10)
    writer.open(seed=0).finish({"image": np.zeros((6, 8, 12), np.uint8)})
    with pytest.raises(BadInput, match="neither one nor three channels"):
        export_lerobot(tmp_path / "stacked", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))
