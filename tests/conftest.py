"""What every test is checked for: nothing that it started may outlive it."""

from __future__ import annotations

import asyncio.runners
import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.bench.processes import MarkedRun, memory_files

# As in tools/test, and before numpy and torch are loaded: idle threads of OpenMP and BLAS spin.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

SCRIPTS = Path(__file__).parent / "fixtures" / "scripts"
EXAMPLE = Path(__file__).parents[1] / "examples" / "ppo_mujoco.py"


@pytest.fixture(scope="session", autouse=True)
def private_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Socket folders of these tests lie apart from those of other runs; the path is short."""
    tmp_path_factory.getbasetemp()  # its place is chosen before TMPDIR changes
    folder = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    tempfile.tempdir = before[1]
    if before[0] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[0]


@pytest.fixture(autouse=True)
def nothing_left_behind(private_temporary_folder: Path) -> Iterator[None]:
    """Fail a test that leaves a child process, a thread, shared memory or a socket folder."""
    before = _belongings(private_temporary_folder)
    yield
    after = _belongings(private_temporary_folder)
    if after != before:
        gc.collect()  # what only a cycle keeps alive is not leaked
        after = _belongings(private_temporary_folder)
    left = {kind: sorted(map(str, after[kind] - before[kind])) for kind in after}
    assert not any(left.values()), f"left behind: { {k: v for k, v in left.items() if v} }"


@pytest.fixture(autouse=True)
def no_stray_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test whose event loop had to cancel tasks when its main coroutine had ended."""
    strays: list[str] = []
    cancel_all = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def noting(loop: asyncio.AbstractEventLoop) -> None:
        strays.extend(task.get_name() for task in asyncio.all_tasks(loop))
        cancel_all(loop)

    monkeypatch.setattr(asyncio.runners, "_cancel_all_tasks", noting)
    yield
    assert not strays, f"tasks left behind: {strays}"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., MarkedRun]]:
    """`launch(script, "--option", "value", ...)` starts a run; afterwards nothing of it is left.

    A script's name without a folder is one of `tests/fixtures/scripts`.
    """
    started: list[MarkedRun] = []

    def launch(script: str | Path, *options: str, **how: Any) -> MarkedRun:
        path = script if isinstance(script, Path) else SCRIPTS / script
        run = MarkedRun(path, options, **how)
        started.append(run)
        return run

    left: list[str] = []
    try:
        yield launch
        for run in started:
            if run.process.poll() is not None:
                left += run.left_behind(grace_s=1.0)
    finally:
        for run in started:
            run.__exit__()
    assert not left, f"left behind: {left}"


def _belongings(folder: Path) -> dict[str, set[Any]]:
    threads = {thread.name for thread in threading.enumerate() if not thread.daemon}
    return {
        "children": _children(),
        "threads": threads,
        "shared memory": memory_files([os.getpid()]),
        "folders": {path.name for path in folder.glob("rlinf-*")},
    }


def _children() -> set[str]:
    """Child processes, zombies included."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= set((task / "children").read_text().split())
        except OSError:
            continue
    return found
