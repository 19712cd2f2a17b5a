"""The inside of a host: its workers, the pools it has mapped, and its work thread.

The same core runs in a spawned process (`execution.host`) and, in serial mode, in the controller's
own process (`execution.local_host`).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from rlinf_async.communication.pool import PoolDescriptor, RowPool
from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution.env_watch import EnvWatch
from rlinf_async.execution.records import Batch, Segment, is_record, record_from_json
from rlinf_async.execution.references import rebuild, resolve_name
from rlinf_async.execution.work_thread import WorkThread
from rlinf_async.hardware import activity
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.tracing.waits import StageClock, Wait

Result = TypeVar("Result")

Remote = Callable[[str, str, str, dict[str, Any], float], Awaitable[Any]]
"""(host, worker, method, arguments, deadline_s) -> value, over a direct link."""


class HostCore:
    """Creates workers, maps pools and performs calls; the `WorkerContext` of its workers."""

    def __init__(self, host: str, *, recorder: Recorder, remote: Remote) -> None:
        self.host = host
        self.recorder = recorder
        self.command = "idle"
        self._command_since_s = time.monotonic()
        self._remote, self._loop = remote, asyncio.get_running_loop()
        self._workers: dict[str, Any] = {}
        self._pools: dict[str, RowPool] = {}
        self._thread = WorkThread(f"work-{host}", asyncio.get_running_loop())
        self._clocks: dict[str, StageClock] = {}
        self._watch: EnvWatch | None = None

    async def perform(self, worker: str, method: str, arguments: dict[str, Any]) -> Any:
        """Run one call and return its plain value; whatever it raises goes to the caller."""
        if worker == "host":
            return await getattr(self, f"_host_{method}")(**arguments)
        bound = self._bound(worker, method)
        arguments = {name: self._argument(value) for name, value in arguments.items()}
        if inspect.iscoroutinefunction(bound):
            return await bound(**arguments)
        return await self._thread.run(self._timed, worker, method, bound, arguments)

    def command_age_s(self) -> float:
        """Seconds since the current command began (or since the last one ended)."""
        return time.monotonic() - self._command_since_s

    def adopt_pool(self, pool: RowPool) -> None:
        """Use a pool that this process already has (serial mode)."""
        self._pools[pool.descriptor.name] = pool

    def look_after_environments(self) -> None:
        """End the call in which an environment is stuck; to be called every now and then."""
        if self._watch is not None and (stuck := self._watch.look(time.perf_counter_ns())):
            self._thread.give_up(stuck)

    async def close(self, limit_s: float) -> bool:
        """Close the workers; False if the work thread was still busy at the limit."""
        try:
            async with asyncio.timeout(limit_s):
                for name, worker in self._workers.items():
                    await self._thread.run(self._timed, name, "close", worker.close, {})
        except TimeoutError:
            return False
        self._thread.stop()
        return True

    def rows(self, pool: str, row: int) -> Mapping[str, np.ndarray]:
        """Views of a row of a mapped pool."""
        return self._pools[pool].row(row)

    def sibling(self, worker: str) -> Any | None:
        """A worker of this host, or None."""
        return self._workers.get(worker)

    def lent(self, borrower: str, lender: str, spent_ns: int) -> None:
        """Move time from the borrower's work to its wait for the lender, who worked."""
        working, idle = (Wait.WORKING, ""), (Wait.INPUT, "controller")
        self._clocks[borrower].move(spent_ns, working, (Wait.INPUT, lender))
        self._clocks[lender].move(spent_ns, idle, working)

    async def compute(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` on the work thread."""
        return await self._thread.run(work, *arguments)

    def call(
        self, host: str, worker: str, method: str, arguments: dict[str, Any], *, deadline_s: float
    ) -> Awaitable[Any]:
        """Call a worker of another host over a direct link."""
        return self._remote(host, worker, method, arguments, deadline_s)

    def ask(
        self, host: str, worker: str, method: str, arguments: dict[str, Any], *, deadline_s: float
    ) -> Any:
        """`call` from the work thread, which it blocks until the answer is there."""

        async def answer() -> Any:
            return await self._remote(host, worker, method, arguments, deadline_s)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    async def _host_create(self, name: str, reference: str, arguments: dict[str, Any]) -> None:
        await self._thread.run(self._create, name, reference, arguments)

    async def _host_watch(self, limit_s: float, first_s: float) -> None:
        self._watch = EnvWatch(activity.current(), limit_s=limit_s, first_s=first_s)

    async def _host_map_pool(self, descriptor: dict[str, Any]) -> None:
        pool = RowPool.attach(PoolDescriptor.from_json(descriptor))
        self._pools[pool.descriptor.name] = pool

    def _create(self, name: str, reference: str, arguments: dict[str, Any]) -> None:
        self._begin(f"{name}.__init__")
        worker_class = resolve_name(reference, where=f"worker {name}")
        clock = self._clocks[name] = self.recorder.stage(f"{name}@{self.host}")
        with self.recorder.span(f"{name}.__init__"):
            self._workers[name] = worker_class(self, **rebuild(arguments, where=f"worker {name}"))
        # From here on the stage waits by default and works inside its calls.
        clock.waiting(Wait.INPUT, on="controller").__enter__()
        self._end()

    def _bound(self, worker: str, method: str) -> Callable[..., Any]:
        if worker not in self._workers:
            raise BadInput(self.host, f"no worker {worker!r}", fix=nearest(worker, self._workers))
        target = self._workers[worker]
        if method.startswith("_") or not callable(getattr(target, method, None)):
            public = [n for n in dir(target) if not n.startswith("_")]
            raise BadInput(f"worker {worker}", f"no method {method!r}", fix=nearest(method, public))
        bound: Callable[..., Any] = getattr(target, method)
        return bound

    def _timed(
        self, worker: str, method: str, bound: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """One call on the work thread, with its span, its stage clock and its place in the log."""
        command = f"{worker}.{method}"
        self._begin(command)
        try:
            with self._clocks[worker].working(), self.recorder.span(command):
                return bound(**arguments)
        finally:
            self._end()

    def _argument(self, value: Any) -> Any:
        """Records of rows become records with views; everything else stays as it is."""
        if not is_record(value):
            return value
        record = record_from_json(value)
        if isinstance(record, Segment):
            return record.with_arrays(self.rows("segments", record.row))
        if isinstance(record, Batch):
            segments = tuple(s.with_arrays(self.rows("segments", s.row)) for s in record.segments)
            return record.with_segments(segments)
        return record

    def _begin(self, command: str) -> None:
        self.command, self._command_since_s = command, time.monotonic()

    def _end(self) -> None:
        self.command, self._command_since_s = "idle", time.monotonic()
