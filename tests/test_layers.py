"""Imports point one way, and importing the package is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS = {
    "errors": 0,
    "tracing": 0,
    "hardware": 1,
    "communication": 2,
    "scheduling": 3,
    "execution": 4,
    "algorithms": 5,
    "models": 5,
    "workers": 5,
    "envs": 5,
    "recording": 5,
    "tracing.views": 6,
    "cli": 6,
    "__main__": 6,
}
USER = 6
HEAVY = (
    "torch", "mujoco", "gymnasium", "sglang", "matplotlib", "tensorboardX", "safetensors",
    "av", "pyarrow",
)  # fmt: skip


def sources() -> Iterator[tuple[str, Path]]:
    """Module name and file of all of the package; the linked folders through their real place."""
    for top in ("rlinf_async", "workers", "envs"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if top == "rlinf_async" else ("rlinf_async", *parts)
            yield ".".join(parts).removesuffix(".__init__"), path


def layer_of(module: str) -> int:
    """The layer of `rlinf_async.a.b`; what the root re-exports belongs to the user layer."""
    parts = module.split(".")[1:]
    for size in (2, 1):
        if ".".join(parts[:size]) in LAYERS:
            return LAYERS[".".join(parts[:size])]
    return USER


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import in a file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def test_imports_point_to_the_own_layer_or_a_lower_one():
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for module, path in sources()
        if module != "rlinf_async"
        for line, name in imported(path)
        if name.startswith("rlinf_async.") and name != "rlinf_async.__version__"
        if layer_of(name) > layer_of(module)
    ]
    assert not upward, "\n".join(upward)


def test_the_linked_folders_are_imported_by_their_full_names_only():
    short = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for _, path in sources()
        for line, name in imported(path)
        if name.split(".")[0] in ("workers", "envs")
    ]
    assert not short, "\n".join(short)


def test_links_to_the_top_level_folders_are_relative():
    for name in ("workers", "envs"):
        link = ROOT / "rlinf_async" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name


def test_scheduling_decides_without_loop_socket_tensor_or_clock():
    impure = {"asyncio", "zmq", "torch", "time", "datetime", "threading", "socket", "random"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for module, path in sources()
        if module.startswith("rlinf_async.scheduling")
        for line, name in imported(path)
        if name.split(".")[0] in impure
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rlinf_async", (*HEAVY, "numpy", "zmq", "asyncio")),
        ("rlinf_async.algorithms", HEAVY),
        ("rlinf_async.models", HEAVY),
        ("rlinf_async.workers", HEAVY),
        ("rlinf_async.envs", HEAVY),
        ("rlinf_async.recording.reader", HEAVY),
        ("rlinf_async.recording.writer", HEAVY),
        ("rlinf_async.cli.main", HEAVY),
        ("rlinf_async.execution.run", HEAVY),
    ],
)
def test_importing_loads_nothing_heavy(module, absent):
    code = f"import {module}, sys; print(*sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
