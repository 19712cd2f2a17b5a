"""Robot suites, each in an interpreter of its own: `run.envs("<suite>/<task>", ...)`.

A suite is a module with `factory(task, first_slot)`, which returns a function that makes the
environment of one slot after the other, from `first_slot` on. Modules import their simulator when
they make something.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rlinf_async.errors import BadInput
from rlinf_async.hardware.interpreters import suites

SUITES = (
    "dm_control",
    "isaaclab",
    "libero",
    "maniskill",
    "metaworld",
    "pusht",
    "robosuite",
    "robotics",
)


def is_suite_id(env_id: str) -> bool:
    """Whether an id belongs to one of `SUITES`."""
    return env_id.partition("/")[0] in SUITES and "/" in env_id


def suite_factory(env_id: str, first_slot: int) -> Callable[[], Any]:
    """A function that makes the environments of a suite's id, slot by slot.

    Raises:
        BadInput: the suite has no such task, or is not installed in this interpreter.
    """
    suite, _, task = env_id.partition("/")
    module: Any = importlib.import_module(f"{__name__}.{suite}")
    try:
        made: Callable[[], Any] = module.factory(task, first_slot)
    except ModuleNotFoundError as cause:
        raise BadInput(
            f"environment {env_id!r}",
            f"module {cause.name!r} is not installed in this interpreter",
            fix=_how_to_get(suite),
        ) from cause
    return made


def _how_to_get(suite: str) -> str:
    if suite in suites():
        return f"run `python -m rlinf_async venvs install {suite}`"
    return f"install what {suite} needs by hand, and start the run from that interpreter"
