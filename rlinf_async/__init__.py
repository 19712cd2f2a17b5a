"""Reinforcement learning of embodied policies: one async script drives worker processes.

Names are imported when they are first used, so that `import rlinf_async` stays fast and loads
neither torch nor a simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_async.errors import BadInput, EngineError, RlinfError, WorkerFailed, WorkerLost
    from rlinf_async.execution.run import Run
    from rlinf_async.execution.stream import Stream
    from rlinf_async.execution.worker import Worker
    from rlinf_async.models.loading import load_policy
    from rlinf_async.scheduling.work_list import Episodes

__version__ = "0.1.0"

__all__ = [
    "BadInput",
    "EngineError",
    "Episodes",
    "RlinfError",
    "Run",
    "Stream",
    "Worker",
    "WorkerFailed",
    "WorkerLost",
    "load_policy",
]

_HOMES = {
    "BadInput": "rlinf_async.errors",
    "EngineError": "rlinf_async.errors",
    "Episodes": "rlinf_async.scheduling.work_list",
    "RlinfError": "rlinf_async.errors",
    "Run": "rlinf_async.execution.run",
    "Stream": "rlinf_async.execution.stream",
    "Worker": "rlinf_async.execution.worker",
    "WorkerFailed": "rlinf_async.errors",
    "WorkerLost": "rlinf_async.errors",
    "load_policy": "rlinf_async.models.loading",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
