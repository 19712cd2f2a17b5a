"""Episodes whose every value tells where it belongs."""

from pathlib import Path

import numpy as np
import pytest

from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.recording import RecordingWriter

SPACES = Spaces(
    observation=(
        ArraySpec(name="state", shape=(3,), dtype="float32"),
        ArraySpec(name="image", shape=(6, 8, 3), dtype="uint8"),
        ArraySpec(name="inner/count", shape=(), dtype="int64"),
    ),
    action=ActionSpec(
        kind="continuous", shape=(2,), dtype="float64", low=(-1.0, -1.0), high=(1.0, 1.0)
    ),
)


def observation(number: int, t: int) -> dict[str, np.ndarray]:
    """What episode `number` sees at step t."""
    return {
        "state": np.array([number, t, 0.5], np.float32),
        "image": np.full((6, 8, 3), (10 * number + t) % 256, np.uint8),
        "inner/count": np.int64(t),
    }


def fill(writer: RecordingWriter, number: int, length: int, *, finish: bool = True):
    """One episode of `length` steps."""
    episode = writer.open(number, seed=100 + number, task="press", instruction=f"press {number}")
    for t in range(length):
        raw = np.array([2.0 * t, -0.5], np.float32)
        episode.add(
            observation(number, t),
            raw,
            np.clip(raw, -1.0, 1.0),
            reward=0.1 * t + number,
            terminated=t == length - 1 and number % 2 == 0,
            truncated=t == length - 1 and number % 2 == 1,
            success=t == 1,
            version=7,
        )
    if finish:
        episode.finish(observation(number, length))
    return episode


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    """Three episodes of 4, 1 and 600 steps."""
    writer = RecordingWriter(tmp_path / "demos", spaces=SPACES, env="Press-v0", fps=20.0)
    for number, length in enumerate((4, 1, 600)):
        fill(writer, number, length)
    return tmp_path / "demos"
