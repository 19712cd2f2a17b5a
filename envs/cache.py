"""The user's folder for what may be thrown away at any time and is made anew."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`rlinf_async` in $XDG_CACHE_HOME, else in ~/.cache; made where it is missing."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlinf_async"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
