"""What `run.json` says of a run: enough to start it again and to know what it ran on."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import rlinf_async
from rlinf_async.execution.options import EngineOptions

PACKAGES = (
    "numpy", "orjson", "pyzmq", "uvloop", "structlog", "tyro", "rich",
    "torch", "mujoco", "gymnasium", "safetensors", "matplotlib",
)  # fmt: skip
GIT_LIMIT_S = 2.0


def describe_run(
    script: Path,
    *,
    options: EngineOptions,
    config: Any,
    arguments: Sequence[str],
    started: datetime,
) -> dict[str, Any]:
    """Resolved configuration, versions, seed, commit, machine, command line and start."""
    from rlinf_async.hardware.devices import machine_summary

    return {
        "script": str(script),
        "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
        "command": ["python", "-m", "rlinf_async", "run", *arguments],
        "folder": os.getcwd(),
        "started": started.isoformat(timespec="seconds"),
        "seed": options.seed,
        "engine": dataclasses.asdict(options),
        "config": dataclasses.asdict(config),
        "versions": package_versions(),
        "git": git_state(script.parent),
        "machine": machine_summary(),
    }


def package_versions() -> dict[str, str | None]:
    """Installed versions, None where absent; nothing is imported for it."""
    versions: dict[str, str | None] = {
        "python": sys.version.split()[0],
        "rlinf_async": rlinf_async.__version__,
    }
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository that holds `folder` and whether tracked files differ from it.

    None outside a repository, before its first commit, or without git; `dirty` is None where git
    took too long to say.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_LIMIT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
