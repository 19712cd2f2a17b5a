"""The parquet and video files of a LeRobot data set, each begun anew when it is large enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.recording.video import VideoWriter

KEYFRAME_EVERY = 2
"""As LeRobot encodes: training reads single frames from anywhere."""
Array = np.ndarray[Any, Any]


class _Numbered:
    """The place of the present file: `chunk-CCC/file-FFF`."""

    CHUNK_FILES = 1000

    def __init__(self) -> None:
        self._count = -1

    def advance(self) -> str:
        """Go on to the next file; its path without the ending."""
        self._count += 1
        return f"chunk-{self.chunk:03d}/file-{self.file:03d}"

    @property
    def chunk(self) -> int:
        return self._count // self.CHUNK_FILES

    @property
    def file(self) -> int:
        return self._count % self.CHUNK_FILES


class DataFiles:
    """`data/`: one row per step, one row group per episode."""

    CHUNK_FILES = _Numbered.CHUNK_FILES
    FILE_MB = 100

    def __init__(self, folder: Path, *, file_bytes: int = FILE_MB << 20) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self._place = _Numbered()
        self._writer: Any = None
        self._written_bytes = 0
        self._features: dict[str, dict[str, Any]] = {}

    def add(self, columns: dict[str, Array]) -> dict[str, Any]:
        """Append an episode's columns [T] or [T, D]; returns where they lie."""
        import pyarrow.parquet as parquet

        table = _table(columns)
        self._features = self._features or {k: _feature(v) for k, v in columns.items()}
        if self._writer is None or self._written_bytes + table.nbytes > self._file_bytes:
            self.close()
            path = self._folder / "data" / f"{self._place.advance()}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer, self._written_bytes = parquet.ParquetWriter(path, table.schema), 0
        self._writer.write_table(table)
        self._written_bytes += table.nbytes
        return {"data/chunk_index": self._place.chunk, "data/file_index": self._place.file}

    def features(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name, dtype and shape of every column, as `info.json` has them."""
        yield from self._features.items()

    def close(self) -> None:
        """Finish the present file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class VideoFiles:
    """`videos/KEY/`: episodes one behind the other, each from one time to another."""

    FILE_MB = 200

    def __init__(
        self, folder: Path, key: str, *, fps: float, file_bytes: int = FILE_MB << 20
    ) -> None:
        self._folder, self._key, self._fps = folder / "videos" / key, key, fps
        self._file_bytes = file_bytes
        self._place = _Numbered()
        self._writer: VideoWriter | None = None

    def begin(self) -> dict[str, Any]:
        """An episode begins; returns where it lies."""
        if self._writer is None or self._writer.written_bytes > self._file_bytes:
            self.close()
            path = self._folder / f"{self._place.advance()}.mp4"
            self._writer = VideoWriter(path, fps=self._fps, keyframe_every=KEYFRAME_EVERY)
        return {
            f"videos/{self._key}/chunk_index": self._place.chunk,
            f"videos/{self._key}/file_index": self._place.file,
            f"videos/{self._key}/from_timestamp": self._writer.frame_count / self._fps,
        }

    def add(self, image: Array) -> None:
        """Append one image, uint8 [H, W, 3]."""
        assert self._writer is not None, "add before begin"
        self._writer.add(image)

    def end(self) -> dict[str, Any]:
        """The episode ended; returns until when it lasts."""
        assert self._writer is not None, "end before begin"
        return {f"videos/{self._key}/to_timestamp": self._writer.frame_count / self._fps}

    def close(self) -> None:
        """Finish the present file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def write_episodes(folder: Path, rows: list[dict[str, Any]]) -> None:
    """`meta/episodes/`, in one file."""
    import pyarrow
    import pyarrow.parquet as parquet

    path = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    here = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    parquet.write_table(pyarrow.Table.from_pylist([{**row, **here} for row in rows]), path)


def write_tasks(folder: Path, tasks: list[str]) -> None:
    """`meta/tasks.parquet`, whose index in pandas is the task's text."""
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.table({"task_index": np.arange(len(tasks)), "task": tasks})
    columns = [
        _pandas_column("task_index", "int64", "int64"),
        _pandas_column("task", "unicode", "object"),
    ]
    told = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    path = folder / "meta" / "tasks.parquet"
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(told)}), path)


def _pandas_column(name: str, kind: str, numpy_type: str) -> dict[str, Any]:
    return {
        "name": name,
        "field_name": name,
        "pandas_type": kind,
        "numpy_type": numpy_type,
        "metadata": None,
    }


def _table(columns: dict[str, Array]) -> Any:
    import pyarrow

    arrays = {}
    for name, values in columns.items():
        flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
        wide = values.ndim == 2 and values.shape[1] != 1
        arrays[name] = (
            pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1]) if wide else flat
        )
    return pyarrow.table(arrays)


def _feature(values: Array) -> dict[str, Any]:
    width = 1 if values.ndim == 1 else values.shape[1]
    return {"dtype": str(values.dtype), "shape": [width], "names": None}
