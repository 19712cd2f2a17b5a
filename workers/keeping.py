"""What an evaluation keeps besides scores: recorded episodes and videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.actions import ActionDecoder
from rlinf_async.envs.filming import Camera
from rlinf_async.execution.spaces import ActionSpec, Spaces
from rlinf_async.recording.video import VideoWriter
from rlinf_async.recording.writer import EpisodeWriter, RecordingWriter
from rlinf_async.workers.scoring import Item, Step

Array = npt.NDArray[Any]


class RecordingWatcher:
    """Writes every episode of an evaluation into a recording, under its item's number."""

    def __init__(
        self,
        folder: Path,
        *,
        spaces: Spaces,
        action: ActionSpec,
        env: str,
        tasks: Sequence[str],
        fps: float | None,
        version: int,
    ) -> None:
        """`spaces` are the policy's; `action` and `fps` are of one simulator step.

        `tasks` [n] are the ids of what the slots of the cell run.
        """
        per_action = None if fps is None else fps / spaces.chunk
        self._recording = RecordingWriter(folder, spaces=spaces, env=env, fps=per_action)
        self._tasks, self._version = tuple(tasks), version
        self._decode = None if action.kind == "mixed" else ActionDecoder(action, spaces.chunk)
        self._decoded_shape = (spaces.chunk, *action.shape)
        self._open: dict[int, EpisodeWriter] = {}

    def begun(self, slot: int, item: Item, observation: Mapping[str, Array]) -> None:
        """Open the episode."""
        self._open[slot] = self._recording.open(
            item.number,
            seed=item.seed,
            task=self._tasks[slot],
            instruction=instruction_of(observation),
            version=self._version,
        )

    def ending(self, slot: int) -> None:
        """Nothing: the last observation comes with `ended`."""

    def stepped(self, slot: int, step: Step) -> None:
        """Append the step."""
        self._open[slot].add(
            step.observation,
            step.action,
            self._executed(step.given),
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            executed=step.executed,
            success=step.success,
            version=self._version,
        )

    def ended(self, slot: int, observation: Mapping[str, Array]) -> None:
        """Finish the episode."""
        self._open.pop(slot).finish(observation)

    def close(self) -> None:
        """Drop episodes under way."""
        while self._open:
            self._open.popitem()[1].discard()

    def _executed(self, given: Array) -> Array:
        if self._decode is None:
            return given
        return self._decode(given.reshape(self._decoded_shape)).reshape(given.shape)


class FilmWatcher:
    """Writes one video per episode: the reset frame first, the true last frame at the end."""

    def __init__(self, folder: Path, camera: Camera, *, steps_per_frame: int = 1) -> None:
        self._folder, self._camera = folder, camera
        self._fps = camera.fps / steps_per_frame
        self._open: dict[int, VideoWriter] = {}
        self._ended: set[int] = set()

    def begun(self, slot: int, item: Item, observation: Mapping[str, Array]) -> None:
        """Film the reset."""
        path = self._folder / f"episode-{item.number:04d}.mp4"
        video = self._open[slot] = VideoWriter(path, fps=self._fps)
        video.add(self._camera.frame(slot))

    def ending(self, slot: int) -> None:
        """Film the end, while it can be seen."""
        self._open[slot].add(self._camera.frame(slot))
        self._ended.add(slot)

    def stepped(self, slot: int, step: Step) -> None:
        """Film the step, unless it was the last."""
        if slot not in self._ended:
            self._open[slot].add(self._camera.frame(slot))

    def ended(self, slot: int, observation: Mapping[str, Array]) -> None:
        """Close the video."""
        self._ended.discard(slot)
        self._open.pop(slot).close()

    def close(self) -> None:
        """Drop videos under way."""
        while self._open:
            self._open.popitem()[1].discard()


def instruction_of(observation: Mapping[str, Array]) -> str:
    """The text of an `instruction` observation, bytes up to the first zero; else ""."""
    text = observation.get("instruction")
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        return ""
    return text.tobytes().partition(b"\0")[0].decode("utf-8", errors="replace")
