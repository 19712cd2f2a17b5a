"""Reading recorded episodes: arrays are mapped, images are inflated one at a time.

Axes: T steps of the episode.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution.spaces import Spaces
from rlinf_async.recording import layout
from rlinf_async.recording.layout import Array, RecordLayout


class Recording:
    """The complete episodes of a folder, in the order of their numbers.

    ```python
    for episode in Recording("demos"):
        print(episode.number, episode.steps["reward"].sum(), episode.described["success_once"])
    ```

    What is listed is fixed when the recording is opened; a writer may go on beside it.
    """

    def __init__(self, folder: str | Path) -> None:
        """BadInput: no recording is there, or one of a version that this code does not read."""
        self.folder = Path(folder)
        document = _document(self.folder)
        self.env: str = document["env"]
        self.fps: float | None = document["fps"]
        self.spaces = Spaces.from_json(document["spaces"])
        self.layout = RecordLayout(self.spaces)
        self._numbers = sorted(
            int(entry.name)
            for entry in (self.folder / layout.EPISODES).iterdir()
            if entry.name.isdigit()
        )

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[RecordedEpisode]:
        return (self.episode(number) for number in self._numbers)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its episodes, ascending."""
        return tuple(self._numbers)

    def episode(self, number: int) -> RecordedEpisode:
        """The episode of a number; BadInput if it is absent or damaged."""
        folder = self.folder / layout.EPISODES / layout.episode_folder(number)
        return RecordedEpisode(folder, self.layout)


class RecordedEpisode:
    """One complete episode; its arrays are read when they are asked for."""

    def __init__(self, folder: Path, records: RecordLayout) -> None:
        self.folder = folder
        self.described = _checked(folder)
        """What `episode.json` says: seed, task, instruction, length, return, success."""
        self.number: int = self.described["number"]
        self.length: int = self.described["length"]
        """T."""
        self._layout = records

    @cached_property
    def steps(self) -> Any:
        """[T] structured and read-only, mapped from the file; fields as in `recording.layout`."""
        return self._mapped(layout.STEPS_FILE, self._layout.step_dtype())

    @cached_property
    def final(self) -> Any:
        """The record of the last observation, without its images."""
        return self._mapped(layout.FINAL_FILE, self._layout.final_dtype())[0]

    def observations(self, name: str) -> Array:
        """[T + 1, *shape]: the observations of every step and the last one, as a new array."""
        if name in self._image_numbers:
            return np.stack(list(self.frames(name)))
        self._check(name)
        field = f"obs/{name}"
        return np.concatenate([self.steps[field], self.final[field][None]])

    def frames(self, name: str) -> Iterator[Array]:
        """The T + 1 frames of an image observation, one after the other."""
        return (self.frame(name, t) for t in range(self.length + 1))

    def frame(self, name: str, t: int) -> Array:
        """Frame `t` of an image observation, uint8 [*shape], an array of the caller's own."""
        self._check(name)
        number = self._image_numbers[name]
        ends = self._ends(number)
        packed = self._packed(number)[ends[t] : ends[t + 1]]
        pixels = np.frombuffer(zlib.decompress(packed.data), np.uint8)
        return pixels.reshape(self._layout.images[number].shape).copy()

    @cached_property
    def _image_numbers(self) -> dict[str, int]:
        return {spec.name: number for number, spec in enumerate(self._layout.images)}

    def _ends(self, number: int) -> Array:
        return np.asarray(np.load(self.folder / f"images-{number}.npy", mmap_mode="r"))

    def _packed(self, number: int) -> Array:
        return np.memmap(self.folder / f"images-{number}.bin", np.uint8, "r")

    def _mapped(self, name: str, dtype: np.dtype[Any]) -> Any:
        if dtype.itemsize == 0:  # every observation is an image
            return np.empty(1, dtype)
        found = np.load(self.folder / name, mmap_mode="r")
        if found.dtype != dtype:
            raise BadInput(
                str(self.folder), f"{name} has other fields", expected=dtype, got=found.dtype
            )
        return found

    def _check(self, name: str) -> None:
        known = [spec.name for spec in self._layout.spaces.observation]
        if name not in known:
            raise BadInput(
                str(self.folder),
                f"no observation {name!r}",
                expected=known,
                fix=nearest(name, known),
            )


def _document(folder: Path) -> dict[str, Any]:
    """`recording.json`, of a format and version that this code reads."""
    path = folder / layout.RECORDING_FILE
    try:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(str(folder), f"is no recording: there is no {path.name}") from None
    except orjson.JSONDecodeError as cause:
        raise BadInput(str(folder), f"{path.name} is damaged: {cause}") from cause
    got = document.get("format"), document.get("version")
    if got != (layout.FORMAT, layout.FORMAT_VERSION):
        raise BadInput(
            str(folder),
            "is of another format or version",
            expected=f"{layout.FORMAT} {layout.FORMAT_VERSION}",
            got=f"{got[0]} {got[1]}",
        )
    return document


def _checked(folder: Path) -> dict[str, Any]:
    """`episode.json`, after a look at the size of every file that it vouches for."""
    try:
        described: dict[str, Any] = orjson.loads((folder / layout.EPISODE_FILE).read_bytes())
        sizes = {name: (folder / name).stat().st_size for name in described["files"]}
    except (OSError, orjson.JSONDecodeError, KeyError) as cause:
        raise BadInput(str(folder), f"the episode is incomplete: {cause!r}") from cause
    for name, size in described["files"].items():
        if sizes[name] != size:
            raise BadInput(
                str(folder),
                f"the episode is incomplete: {name} was changed or cut off",
                expected=f"{size} bytes",
                got=f"{sizes[name]} bytes",
            )
    return described
