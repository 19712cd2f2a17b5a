"""Scripts in a folder of their own; what loading one changes in this process is undone."""

import sys
from pathlib import Path

import pytest

from rlinf_async.execution.references import SCRIPT_MODULE

GOOD = '''\
"""A script."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Config:
    """A tiny script's own options."""

    env_count: int = 4
    """How many environments."""
    max_lag: int = 0
    """How old."""
    kind: Literal["a", "b"] = "a"


async def main(run, cfg): ...
'''


@pytest.fixture
def good() -> str:
    return GOOD


@pytest.fixture
def write_script(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    yield write
    sys.modules.pop(SCRIPT_MODULE, None)
