"""Videos are whole, of the right size and rate, and begin with the first frame that was given."""

import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from rlinf_async.errors import BadInput
from rlinf_async.recording import VideoWriter

av = pytest.importorskip("av")

RED, GREEN = (220, 30, 30), (30, 200, 40)


def frame(colour: tuple[int, int, int], height: int = 64, width: int = 96) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def decoded(path) -> tuple[list[np.ndarray], Fraction]:
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        return [each.to_ndarray(format="rgb24") for each in container.decode(video=0)], rate


def test_every_frame_is_there_and_the_first_is_the_first(tmp_path):
    writer = VideoWriter(tmp_path / "new" / "one.mp4", fps=30)
    for number in range(75):
        writer.add(frame(RED if number == 0 else GREEN))
    writer.close()
    frames, rate = decoded(tmp_path / "new" / "one.mp4")
    assert len(frames) == writer.frame_count == 75
    assert rate == 30
    assert {each.shape for each in frames} == {(64, 96, 3)}
    assert np.abs(frames[0].astype(int) - RED).max() < 12
    assert all(np.abs(each.astype(int) - GREEN).max() < 12 for each in frames[1:])


@pytest.mark.parametrize("fps", [12.5, 20.0, 30000 / 1001, 80.0])
def test_the_rate_is_the_environment_s(tmp_path, fps):
    writer = VideoWriter(tmp_path / "one.mp4", fps=fps)
    for _ in range(3):
        writer.add(frame(RED))
    writer.close()
    assert float(decoded(tmp_path / "one.mp4")[1]) == pytest.approx(fps, rel=1e-4)


def test_odd_edges_are_repeated(tmp_path):
    writer = VideoWriter(tmp_path / "odd.mp4", fps=10)
    image = frame(GREEN, 63, 95)
    image[:, 90:] = RED
    writer.add(image)
    writer.close()
    (shown,), _ = decoded(tmp_path / "odd.mp4")
    assert shown.shape == (64, 96, 3)
    assert np.abs(shown[5, 95].astype(int) - RED).max() < 25


def test_a_video_that_is_not_closed_has_no_name(tmp_path):
    writer = VideoWriter(tmp_path / "one.mp4", fps=10)
    writer.add(frame(RED))
    assert not (tmp_path / "one.mp4").exists()
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_a_video_without_frames_is_no_file(tmp_path):
    VideoWriter(tmp_path / "none.mp4", fps=10).close()
    assert not list(tmp_path.iterdir())


def test_frames_of_another_kind_are_refused(tmp_path):
    writer = VideoWriter(tmp_path / "one.mp4", fps=10)
    with pytest.raises(ValueError, match="expected uint8"):
        writer.add(np.zeros((8, 8), np.uint8))
    writer.add(frame(RED))
    with pytest.raises(ValueError, match=r"expected uint8 \(64, 96, 3\), got float64"):
        writer.add(frame(RED).astype(float))
    writer.discard()
    with pytest.raises(BadInput, match="frames per second"):
        VideoWriter(tmp_path / "one.mp4", fps=0)


def test_memory_does_not_grow_with_the_video(tmp_path):
    writer = VideoWriter(tmp_path / "long.mp4", fps=30)
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (64, 64, 3), np.uint8) for _ in range(8)]
    tracemalloc.start()
    for number in range(400):
        writer.add(frames[number % 8])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.close()
    assert peak_bytes < 40 * frames[0].nbytes


def test_a_missing_encoder_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BadInput, match=r"module 'av' is not installed; pip install .*video"):
        VideoWriter(tmp_path / "one.mp4", fps=10)
