"""Keeps MuJoCo from appending to MUJOCO_LOG.TXT in the user's working directory."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator


def log_to_stderr_only() -> None:
    """Send MuJoCo's warnings to stderr alone, which each worker keeps in a file of its own."""
    import mujoco

    if hasattr(mujoco, "MjLogConfig"):
        config = mujoco.MjLogConfig.get()
        config.logto_file = False
        mujoco.MjLogConfig.set(config)
    else:  # before 4.0 only the warning handler can be replaced
        mujoco.set_mju_user_warning(_to_stderr)


@contextlib.contextmanager
def without_compiler_remarks() -> Iterator[None]:
    """Silence MuJoCo while it compiles a model that is not the user's to mend."""
    import mujoco

    config = mujoco.MjLogConfig.get()
    before = config.logto_console
    config.logto_console = False
    mujoco.MjLogConfig.set(config)
    try:
        with warnings.catch_warnings(category=UserWarning, action="ignore"):
            yield
    finally:
        config.logto_console = before
        mujoco.MjLogConfig.set(config)


def _to_stderr(message: str) -> None:
    sys.stderr.write(f"mujoco: {message}\n")
