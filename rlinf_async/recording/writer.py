"""Writing recorded episodes: step by step, in bounded memory, complete or not at all.

Axes: T steps of the episode, A action, C steps of one action.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces
from rlinf_async.recording import layout
from rlinf_async.recording.layout import Array, RecordLayout

BUFFER_STEPS = 256
BUFFER_BYTES = 1 << 20
"""Steps wait in memory until there are so many, or so many bytes."""
DEFLATE_LEVEL = 1
"""Rendered images shrink most at the first level already; higher ones cost several times more."""


class RecordingWriter:
    """A recording that episodes are added to; several processes may add to the same one.

    ```python
    recording = RecordingWriter("demos", spaces=spaces, env="metaworld/reach-v3", fps=80)
    episode = recording.open(seed=7)
    episode.add(observation, action, executed, reward=r, terminated=False, truncated=False)
    episode.finish(final_observation)
    ```
    """

    def __init__(
        self, folder: str | Path, *, spaces: Spaces, env: str, fps: float | None = None
    ) -> None:
        """Make the folder, or go on with one of the same environment and spaces.

        `fps`: steps of an action in a second of simulated time, None where that means nothing.
        BadInput where something else is there.
        """
        self.folder = Path(folder)
        self.layout = RecordLayout(spaces)
        document = {
            "format": layout.FORMAT,
            "version": layout.FORMAT_VERSION,
            "env": env,
            "fps": fps,
            "spaces": spaces.to_json(),
            "images": [spec.name for spec in self.layout.images],
        }
        self._make(orjson.loads(orjson.dumps(document)))
        self._next = max(self._numbers(), default=-1) + 1

    def open(
        self,
        number: int | None = None,
        *,
        seed: int,
        task: str = "",
        instruction: str = "",
        **more: Any,
    ) -> EpisodeWriter:
        """Begin an episode.

        Args:
            number: its place in the recording; None: behind the last one that this writer knows.
                Writers in several processes must be given numbers.
            task: the task's id, where the environment has several.
            more: whatever else should stand in `episode.json`, as orjson can write it.

        Raises:
            BadInput: an episode of this number is there.
        """
        number = self._next if number is None else number
        self._next = max(self._next, number + 1)
        place = self.folder / layout.EPISODES / layout.episode_folder(number)
        if place.exists():
            raise BadInput(str(self.folder), f"episode {number} is there", fix="use a new folder")
        told = {"number": number, "seed": seed, "task": task, "instruction": instruction, **more}
        return EpisodeWriter(place, self.layout, told)

    def _make(self, document: dict[str, Any]) -> None:
        (self.folder / layout.EPISODES).mkdir(parents=True, exist_ok=True)
        path = self.folder / layout.RECORDING_FILE
        if not path.exists():
            if next(self._numbers(), None) is not None:
                raise BadInput(str(self.folder), f"has episodes but no {layout.RECORDING_FILE}")
            draft = path.with_name(f".{path.name}-{os.getpid()}")
            draft.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
            draft.replace(path)
        found = orjson.loads(path.read_bytes())
        changed = [key for key in document if found.get(key) != document[key]]
        if changed:
            raise BadInput(
                str(self.folder),
                f"holds another recording ({', '.join(changed)} differ)",
                fix="use a new folder",
            )
        self._remove_drafts()

    def _numbers(self) -> Iterator[int]:
        for entry in (self.folder / layout.EPISODES).iterdir():
            if entry.name.isdigit():
                yield int(entry.name)

    def _remove_drafts(self) -> None:
        """Remove what killed writers left; drafts of processes that live are not touched."""
        for entry in (self.folder / layout.EPISODES).glob(f"{layout.DRAFT}*"):
            owner = re.fullmatch(rf"{re.escape(layout.DRAFT)}\d+-(\d+)", entry.name)
            if owner and not Path(f"/proc/{owner[1]}").exists():
                shutil.rmtree(entry, ignore_errors=True)


class EpisodeWriter:
    """One episode in the making; it appears in the recording when `finish` returns."""

    def __init__(self, place: Path, records: RecordLayout, told: Mapping[str, Any]) -> None:
        self._place, self._told = place, dict(told)
        self._draft = place.with_name(f"{layout.DRAFT}{place.name}-{os.getpid()}")
        shutil.rmtree(self._draft, ignore_errors=True)
        self._draft.mkdir()
        self._plain = [spec.name for spec in records.plain]
        self._final = np.zeros(1, records.final_dtype())
        self._steps = _RecordFile(self._draft / layout.STEPS_FILE, records.step_dtype())
        self._images = {
            spec.name: _FrameFile(self._draft / f"images-{number}", spec.shape)
            for number, spec in enumerate(records.images)
        }
        self.length = 0
        """Steps so far."""
        self._simulated, self._return = 0, 0.0
        self._success: bool | None = None
        self._success_once = False
        self._ended = False

    def add(
        self,
        observation: Mapping[str, Array],
        action: Any,
        executed_action: Any,
        *,
        reward: Any,
        terminated: bool,
        truncated: bool,
        executed: int = 1,
        success: bool | None = None,
        version: int = -1,
    ) -> None:
        """Append one step: what was seen [*shape], done [*A], and what came of it.

        All values are copied. `reward` is a number, or [C] with chunks; `success` None where the
        environment reports none.
        """
        record = self._steps.next_record()
        for name in self._plain:
            record[f"obs/{name}"] = observation[name]
        for name, file in self._images.items():
            file.add(observation[name])
        record["action"], record["executed_action"] = action, executed_action
        record["reward"], record["executed"] = reward, executed
        record["terminated"], record["truncated"] = terminated, truncated
        record["success"], record["version"] = bool(success), version
        self._success = self._success if success is None else bool(success)
        self._success_once |= bool(success)
        self._return += float(np.sum(reward))
        self._simulated += executed
        self._ended = terminated or truncated
        self.length += 1

    def finish(self, final_observation: Mapping[str, Array]) -> Path:
        """Close the episode with the true last observation [*shape]; returns its folder."""
        for name in self._plain:
            self._final[0][f"obs/{name}"] = final_observation[name]
        for name, file in self._images.items():
            file.add(final_observation[name])
        self._steps.close()
        np.save(self._draft / layout.FINAL_FILE, self._final)
        for file in self._images.values():
            file.close()
        document = {
            **self._told,
            "length": self.length,
            "simulated_steps": self._simulated,
            "return": self._return,
            "ended": self._ended,
            "success_once": None if self._success is None else self._success_once,
            "success_at_end": self._success,
            "files": {entry.name: entry.stat().st_size for entry in sorted(self._draft.iterdir())},
        }
        marker = self._draft / layout.EPISODE_FILE
        marker.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        self._draft.rename(self._place)
        return self._place

    def discard(self) -> None:
        """Forget the episode."""
        self._steps.abandon()
        for file in self._images.values():
            file.abandon()
        shutil.rmtree(self._draft, ignore_errors=True)


class _RecordFile:
    """A `.npy` file of records that grows; its header is redone when the count is known."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        rows = max(1, min(BUFFER_STEPS, BUFFER_BYTES // dtype.itemsize))
        self._buffer = np.zeros(rows, dtype)
        self._filled = self._written = 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close)
        self._file.write(layout.npy_header(dtype, 0))

    def next_record(self) -> Any:
        """The record to fill in; those before it are written out when the buffer is full."""
        if self._filled == len(self._buffer):
            self._flush()
        self._filled += 1
        return self._buffer[self._filled - 1]

    def close(self) -> None:
        """Write what is left and the true count."""
        self._flush()
        self._file.seek(0)
        self._file.write(layout.npy_header(self._buffer.dtype, self._written))
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _flush(self) -> None:
        self._file.write(self._buffer[: self._filled].tobytes())
        self._written += self._filled
        self._filled = 0


class _FrameFile:
    """Deflated frames one behind the other, and where each ends."""

    def __init__(self, stem: Path, shape: tuple[int, ...]) -> None:
        self._stem, self._shape = stem, shape
        self._ends = [0]
        self._file = open(f"{stem}.bin", "wb")  # noqa: SIM115 (closed by close)

    def add(self, frame: Array) -> None:
        """Append one frame, uint8."""
        if frame.shape != self._shape or frame.dtype != np.uint8:
            raise ValueError(
                f"frame: expected uint8 {self._shape}, got {frame.dtype} {frame.shape}"
            )
        packed = zlib.compress(np.ascontiguousarray(frame).data, DEFLATE_LEVEL)
        self._file.write(packed)
        self._ends.append(self._ends[-1] + len(packed))

    def close(self) -> None:
        """Write the ends beside the frames."""
        self._file.close()
        np.save(f"{self._stem}.npy", np.array(self._ends, np.int64))

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()
