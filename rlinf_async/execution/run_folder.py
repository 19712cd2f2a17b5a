"""The folder of one run: private to the user, everything about the run in it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import orjson

from rlinf_async.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Where a run writes; the folder exists, is empty at first and has mode 0700."""

    path: Path

    @property
    def logs(self) -> Path:
        """One JSON-lines log and one stderr file per process."""
        return self.path / "logs"

    @property
    def description(self) -> Path:
        """Configuration, versions, seed, commit and machine, written before the run starts."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """One row of metrics per iteration."""
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        """The learning curve."""
        return self.path / "curve.png"

    @property
    def checkpoint(self) -> Path:
        """The final checkpoint."""
        return self.path / "checkpoint"

    @classmethod
    def create(cls, path: Path | None, *, script: Path, started: datetime) -> Self:
        """Make the folder: `path`, or `runs/<script>-<date>-<time>[-n]` below the current folder.

        Raises BadInput if it cannot be made or written, or if `path` exists and is not empty.
        """
        try:
            target = _fresh(script, started) if path is None else _given(path.expanduser())
            folder = cls(path=target.absolute())
            folder.logs.mkdir(mode=0o700)
        except OSError as cause:
            where = path or Path("runs").absolute()
            raise BadInput(
                "--run-dir",
                f"cannot make a run folder at {where}: {cause.strerror}: {cause.filename}",
                fix="choose a folder that you may write with --run-dir",
            ) from cause
        return folder

    def describe(self, description: dict[str, Any]) -> None:
        """Write `run.json`."""
        text = orjson.dumps(
            description, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str
        )
        self.description.write_bytes(text + b"\n")

    def discard(self) -> None:
        """Remove the folder if it holds nothing but the description and logs.

        For input that was refused: a second try with the same `--run-dir` must find it empty.
        """
        ours = {self.logs.name, self.description.name}
        if all(entry.name in ours for entry in self.path.iterdir()):
            shutil.rmtree(self.path)


def _fresh(script: Path, started: datetime) -> Path:
    name = f"{script.stem}-{started:%Y%m%d-%H%M%S}"
    parent = Path("runs")
    parent.mkdir(exist_ok=True)
    for count in range(1, 1000):
        target = parent / (name if count == 1 else f"{name}-{count}")
        try:
            _private(target)
        except FileExistsError:
            continue
        return target
    raise BadInput("--run-dir", f"a thousand folders are named {parent / name}")


def _given(path: Path) -> Path:
    if path.exists():
        if not path.is_dir():
            raise BadInput("--run-dir", f"{path} is a file", expected="a new or empty folder")
        if any(path.iterdir()):
            raise BadInput(
                "--run-dir",
                f"{path} exists and is not empty",
                expected="a new or empty folder",
                fix="choose another, or remove it: runs are never mixed or overwritten",
            )
        os.chmod(path, 0o700)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    _private(path)
    return path


def _private(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chmod(path, 0o700)  # the umask may have taken our own bits
