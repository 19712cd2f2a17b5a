"""Export to LeRobot's data set layout, version 3.0.

    meta/info.json                                 counts, frames per second, features
    meta/stats.json                                statistics of every feature
    meta/tasks.parquet                             instruction and its number
    meta/episodes/chunk-000/file-000.parquet       one row per episode: its place, its statistics
    data/chunk-000/file-000.parquet                one row per step, one row group per episode
    videos/KEY/chunk-000/file-000.mp4              images of many episodes, one behind the other

Observation `state` becomes `observation.state`, an image `observation.images.NAME`, any other
`observation.NAME` with dots for slashes; `action` is the executed one, flat, `raw_action` the
policy's own. One row is one step: the observation after the last has no row there.

Layout: the class `LeRobotDatasetMetadata` of github.com/huggingface/lerobot.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec
from rlinf_async.recording.feature_stats import FeatureStats
from rlinf_async.recording.lerobot_files import DataFiles, VideoFiles, write_episodes, write_tasks
from rlinf_async.recording.reader import RecordedEpisode, Recording
from rlinf_async.recording.video import check_video_installed

VERSION = "v3.0"
STATS_FRAMES = 50
"""Images of an episode that its statistics are made of, evenly spread."""
OWN_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def export_lerobot(
    recording: Recording | str | Path,
    folder: str | Path,
    *,
    fps: float | None = None,
    robot_type: str | None = None,
) -> Path:
    """Write `recording` as a LeRobot data set into the new folder `folder`; returns that.

    `fps`: steps of an action in a second, where the recording does not know. Memory holds one
    episode's rows and one image at a time.

    Raises:
        BadInput: no episodes, no rate, a folder that exists, images that are neither grey nor
            colour, or `pyarrow` (and `av`, for images) not installed.
    """
    source = recording if isinstance(recording, Recording) else Recording(recording)
    target, rate = Path(folder), fps or source.fps
    _check(source, target, rate)
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _Export(source, draft, float(rate or 0.0), robot_type).write()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _check(source: Recording, target: Path, rate: float | None) -> None:
    who = f"export of {source.folder}"
    if importlib.util.find_spec("pyarrow") is None:
        raise BadInput(
            who, "module 'pyarrow' is not installed", fix="pip install 'rlinf_async[lerobot]'"
        )
    if source.layout.images:
        check_video_installed(who)
    if target.exists():
        raise BadInput(who, f"{target} exists", expected="a new folder")
    if not len(source):
        raise BadInput(who, "there are no complete episodes")
    if rate is None or not rate > 0.0:
        raise BadInput(who, "frames per second", expected="> 0", got=rate, fix="give fps=")
    for spec in source.layout.images:
        if _channels(spec) is None:
            raise BadInput(
                who,
                f"image {spec.name!r} has neither one nor three channels",
                got=f"shape {spec.shape}",
                fix="record it before frames are stacked",
            )


class _Export:
    """One export under way."""

    def __init__(self, source: Recording, folder: Path, fps: float, robot_type: str | None) -> None:
        self._source, self._folder, self._fps = source, folder, fps
        self._robot_type = robot_type
        layout = source.layout
        self._numeric = {_key(spec): spec for spec in layout.plain}
        self._cameras = {_key(spec): spec for spec in layout.images}
        self._data = DataFiles(folder)
        self._videos = {key: VideoFiles(folder, key, fps=fps) for key in self._cameras}
        self._tasks: dict[str, int] = {}
        self._totals: dict[str, FeatureStats] = {}
        self._rows: list[dict[str, Any]] = []
        self._frames = 0

    def write(self) -> None:
        """Everything, the metadata last."""
        for episode in self._source:
            if episode.length:
                self._add(len(self._rows), episode)
        self._data.close()
        for video in self._videos.values():
            video.close()
        write_episodes(self._folder, self._rows)
        write_tasks(self._folder, list(self._tasks))
        stats = {key: total.to_json() for key, total in self._totals.items()}
        self._document("stats", stats)
        self._document("info", self._info())

    def _add(self, index: int, episode: RecordedEpisode) -> None:
        task = episode.described["instruction"] or episode.described["task"] or self._source.env
        number = self._tasks.setdefault(task, len(self._tasks))
        columns = self._columns(index, number, episode)
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [task],
            "length": episode.length,
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + episode.length,
            **self._data.add(columns),
        }
        stats = {key: FeatureStats.of(values) for key, values in columns.items()}
        for key, spec in self._cameras.items():
            stats[key] = self._add_video(key, spec, episode, row)
        for key, found in stats.items():
            self._totals[key] = self._totals[key].merged(found) if key in self._totals else found
            row |= {f"stats/{key}/{name}": value for name, value in found.to_json().items()}
        self._rows.append(row)
        self._frames += episode.length

    def _columns(self, index: int, task: int, episode: RecordedEpisode) -> dict[str, Any]:
        """Column to [T] or [T, D]; scalars and vectors only."""
        steps, length = episode.steps, episode.length
        times = np.arange(length)
        columns = {key: steps[f"obs/{spec.name}"] for key, spec in self._numeric.items()}
        reward = steps["reward"]
        columns |= {
            "action": steps["executed_action"],
            "raw_action": steps["action"],
            "next.reward": reward.reshape(length, -1).sum(axis=1).astype(np.float32),
            "next.done": steps["terminated"] | steps["truncated"],
            "next.success": steps["success"],
            "timestamp": (times / self._fps).astype(np.float32),
            "frame_index": times,
            "episode_index": np.full(length, index),
            "index": self._frames + times,
            "task_index": np.full(length, task),
        }
        return {key: _flat(np.asarray(values)) for key, values in columns.items()}

    def _add_video(
        self, key: str, spec: ArraySpec, episode: RecordedEpisode, row: dict[str, Any]
    ) -> FeatureStats:
        every = max(1, episode.length // STATS_FRAMES)
        total: FeatureStats | None = None
        video, sampled = self._videos[key], 0
        row |= video.begin()
        for t in range(episode.length):
            image = _to_rgb(episode.frame(spec.name, t))
            video.add(image)
            if t % every == 0:
                found, sampled = FeatureStats.of_image(image), sampled + 1
                total = found if total is None else total.merged(found)
        row |= video.end()
        assert total is not None, "an episode without steps"
        return total.counted_as(sampled)

    def _info(self) -> dict[str, Any]:
        episodes = len(self._rows)
        return {
            "codebase_version": VERSION,
            "robot_type": self._robot_type,
            "total_episodes": episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": self._data.CHUNK_FILES,
            "data_files_size_in_mb": self._data.FILE_MB,
            "video_files_size_in_mb": VideoFiles.FILE_MB,
            "fps": int(self._fps) if self._fps.is_integer() else self._fps,
            "splits": {"train": f"0:{episodes}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
            if self._cameras
            else None,
            "features": {**dict(self._video_features()), **dict(self._data.features())},
        }

    def _video_features(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, spec in self._cameras.items():
            height, width = _even_size(spec)
            yield (
                key,
                {
                    "dtype": "video",
                    "shape": [height, width, 3],
                    "names": ["height", "width", "channels"],
                    "info": {
                        "video.height": height,
                        "video.width": width,
                        "video.codec": "h264",
                        "video.pix_fmt": "yuv420p",
                        "video.is_depth_map": False,
                        "video.fps": self._fps,
                        "video.channels": 3,
                        "has_audio": False,
                    },
                },
            )

    def _document(self, name: str, content: dict[str, Any]) -> None:
        path = self._folder / "meta" / f"{name}.json"
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _key(spec: ArraySpec) -> str:
    name = spec.name.replace("/", ".")
    is_image = spec.dtype == "uint8" and len(spec.shape) >= 2
    return f"observation.images.{name}" if is_image else f"observation.{name}"


def _flat(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[T] of scalars, or [T, D] with all other axes in one."""
    return values if values.ndim == 1 else values.reshape(len(values), math.prod(values.shape[1:]))


def _channels(spec: ArraySpec) -> int | None:
    """The axis of an image's colours: 0, 2, or -1 where it has none; None for no picture."""
    if len(spec.shape) == 2:
        return -1
    if len(spec.shape) != 3:
        return None
    return 2 if spec.shape[2] in (1, 3) else 0 if spec.shape[0] in (1, 3) else None


def _to_rgb(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[H, W], [1 or 3, H, W] or [H, W, 1 or 3] to [H, W, 3]."""
    if image.ndim == 2:
        image = image[..., None]
    elif image.shape[2] not in (1, 3):
        image = image.transpose(1, 2, 0)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _even_size(spec: ArraySpec) -> tuple[int, int]:
    shape = spec.shape[1:] if _channels(spec) == 0 else spec.shape
    return shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
