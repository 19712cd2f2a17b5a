"""The one host of serial mode: it shares the controller's process."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from rlinf_async.communication.calls import worker_failed
from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.messages import Call, Failure
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import BadInput, EngineError, PeerGone, PeerTimeout
from rlinf_async.execution.host_core import HostCore
from rlinf_async.execution.hosts import LEAVE_BUDGET_S
from rlinf_async.execution.logs import get_logger
from rlinf_async.hardware.devices import process_peak_bytes
from rlinf_async.tracing.recorder import Recorder


class LocalHost:
    """All workers in the controller's process, on one work thread (serial mode)."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name = name
        self._core = HostCore(name, recorder=recorder, remote=_no_remote)
        self.recorder = recorder

    async def call(
        self,
        worker: str,
        method: str,
        arguments: dict[str, Any],
        *,
        deadline_s: float,
        progress_s: Callable[[], float] | None = None,
    ) -> Any:
        """Run the method on the work thread; a debugger may hold it, so there is no deadline."""
        try:
            return await self._core.perform(worker, method, arguments)
        except (EngineError, BadInput):
            raise
        except Exception as cause:
            failure = Failure.of(0, cause)
            call = Call(call_id=0, worker=worker, method=method, arguments=arguments)
            raise worker_failed(self.name, call, failure) from cause

    async def map_pool(self, pool: RowPool) -> None:
        """The pool is in this process already."""
        self._core.adopt_pool(pool)

    async def explain(self, error: PeerTimeout | PeerGone) -> EngineError:
        """As it is: calls in this process have no deadline."""
        return error

    def doing(self) -> str:
        """The current command and its age."""
        return f"{self._core.command} {self._core.command_age_s():.1f} s"

    def progress_s(self) -> float:
        """Nobody has to know: calls have no deadline."""
        return 0.0

    def cpu_s(self) -> float:
        """Nothing of its own."""
        return 0.0

    def peak_bytes(self) -> int:
        """Of the controller's process."""
        return process_peak_bytes(os.getpid())

    def move(self, cores: Collection[int]) -> None:
        """The controller's own process stays where it is."""

    async def close(self) -> None:
        """Close the workers if the thread is free in time."""
        try:
            async with deadline(LEAVE_BUDGET_S, waiting_for="the work thread to end"):
                await self._core.close(LEAVE_BUDGET_S)
        except Exception as late:
            get_logger().warning("host_close_failed", host=self.name, error=repr(late))


async def _no_remote(
    host: str, worker: str, method: str, arguments: dict[str, Any], deadline_s: float
) -> Any:
    raise EngineError(f"serial mode has one host only, there is no {host}")
