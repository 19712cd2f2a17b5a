"""One run from the first signal handler to the last closed file: the root of all tasks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import uvloop

from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.runtime_folder import RuntimeFolder, remove_stale
from rlinf_async.errors import BadInput, Interrupted, PeerTimeout, StageExited
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.loop_lag import LoopLag
from rlinf_async.execution.options import EngineOptions, parse_cores
from rlinf_async.execution.run import Run
from rlinf_async.execution.run_folder import RunFolder
from rlinf_async.execution.status import RunStatus
from rlinf_async.execution.trace_service import TraceService
from rlinf_async.execution.watched import Watched
from rlinf_async.hardware.devices import available_cores
from rlinf_async.tracing.recorder import install

log = get_logger()

Main = Callable[[Run, Any], Awaitable[None]]

FLIGHT_BUDGET_S = 5.0


class Shows(Protocol):
    """A display: shows a run until it is cancelled."""

    async def show(self, status: Callable[[], RunStatus]) -> None:
        """Endless."""
        ...


def execute(
    main: Main,
    config: Any,
    options: EngineOptions,
    folder: RunFolder,
    display: Shows,
    *,
    planning: bool = False,
) -> None:
    """Run `main(run, config)` to its end; `planning`: only until its plan is ready.

    Raises:
        PlanReady: the plan, where that is all that was wanted.
        Interrupted: SIGINT or SIGTERM; a second one ends the process at once.
        RlinfError, or an exception group of what failed: the first failure comes first.
    """
    began_s = time.monotonic()
    uvloop.run(_session(main, config, options, folder, display, began_s, planning))


async def _session(
    main: Main,
    config: Any,
    options: EngineOptions,
    folder: RunFolder,
    display: Shows,
    began_s: float,
    planning: bool,
) -> None:
    interruption, watched = Interruption(asyncio.current_task()), Watched()
    with interruption.handled(), _sockets_folder(interruption) as runtime_folder:
        lag = LoopLag(install("controller", memory=watched.ring("controller").memory))
        run = Run(
            options,
            folder,
            script=_script_of(main),
            cores=parse_cores(options.devices, available_cores()),
            recorder=lag.recorder,
            runtime_folder=runtime_folder,
            began_s=began_s,
            watched=watched,
        )
        run.planning = planning
        run.config = asdict(config) if is_dataclass(config) and not isinstance(config, type) else {}
        run.loop_lag_s = lag.worst_s
        trace = TraceService(run)
        try:
            shown = functools.partial(display.show, run.status)
            async with asyncio.TaskGroup() as group:
                endless = [
                    group.create_task(_endless("loop lag", lag.watch)),
                    group.create_task(_endless("display", shown)),
                    group.create_task(_endless("trace", trace.serve)),
                ]
                await main(run, config)
                for task in endless:
                    task.cancel()
        except BaseException as error:
            await _keep_flight(trace, error, interruption.number)
            if interruption.number is not None:
                raise Interrupted(interruption.number) from error
            raise
        finally:
            await run.close()
            watched.close()


async def _keep_flight(trace: TraceService, error: BaseException, number: int | None) -> None:
    """Write the last minute's trace beside what failed; not being able to is only logged."""
    cause = _first_of(error)
    failure = f"{type(cause).__name__}: {cause}"
    if number is not None:
        failure = f"interrupted by {signal.Signals(number).name}"
    if isinstance(cause, BadInput):
        return
    try:
        async with deadline(FLIGHT_BUDGET_S, waiting_for="the flight record to be written"):
            path = await asyncio.to_thread(trace.flight, failure)
        log.info("flight_recorded", file=str(path))
    except (OSError, PeerTimeout) as late:
        log.warning("flight_not_recorded", error=repr(late))


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _endless(name: str, body: Callable[[], Awaitable[None]]) -> None:
    await body()
    raise StageExited(f"{name} returned while the run was going on")


class Interruption:
    """First signal: cancel the root task, so that everything closes. Second: end at once."""

    def __init__(self, root: asyncio.Task[Any] | None) -> None:
        self.number: int | None = None
        self.clean_up: Callable[[], None] = lambda: None
        self._root = root

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside the block."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._come, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _come(self, number: int) -> None:
        if self.number is not None:
            # Hosts die with this process: the kernel sends their parent-death signal.
            self.clean_up()
            os._exit(128 + number)
        log.warning("interrupted", signal=signal.Signals(number).name)
        self.number = number
        if self._root is not None:
            self._root.cancel()


@contextlib.contextmanager
def _sockets_folder(interruption: Interruption) -> Iterator[RuntimeFolder]:
    """The private folder for this run's sockets; those of killed runs are removed first."""
    for stale in remove_stale():
        log.info("stale_folder_removed", folder=str(stale))
    folder = RuntimeFolder.create()
    interruption.clean_up = folder.remove
    try:
        yield folder
    finally:
        folder.remove()


def _script_of(main: Main) -> Path | None:
    code = getattr(main, "__code__", None)
    return Path(code.co_filename) if code is not None else None
