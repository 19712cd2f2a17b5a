"""Hosts as the controller sees them: something that performs calls and can end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlinf_async.communication.calls import Caller, about, worker_failed
from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.link import Router
from rlinf_async.communication.messages import Call, Failure, Heartbeat, Hello, Message, Note
from rlinf_async.communication.pool import RowPool
from rlinf_async.communication.runtime_folder import RuntimeFolder
from rlinf_async.errors import (
    BadInput,
    EngineError,
    PeerGone,
    PeerTimeout,
    WorkerLost,
)
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.watched import Watched
from rlinf_async.hardware import affinity
from rlinf_async.hardware.activity import BOARD_VARIABLE, Board, BoardFile
from rlinf_async.hardware.devices import process_cpu_s, process_peak_bytes
from rlinf_async.hardware.process import HostProcess
from rlinf_async.tracing.ring import RING_VARIABLE

START_DEADLINE_S = 60.0
LEAVE_BUDGET_S = 2.0
GONE_BUDGET_S = 1.0
"""How long after its link the end of a process may be seen."""
CRASH_LINES = 40
"""The stacks of a crash begin with the innermost call, which must not be cut off."""
ROLES = ("render", "rollout", "train", "evaluate")
SILENT_LIMIT_S = 30.0
"""A host whose loop sends no heartbeat for so long is lost; a busy worker does not stop them."""


class Host(Protocol):
    """Runs workers; the only way in which the controller reaches them."""

    name: str

    async def call(
        self,
        worker: str,
        method: str,
        arguments: dict[str, Any],
        *,
        deadline_s: float,
        progress_s: Callable[[], float] | None = None,
    ) -> Any:
        """Run a worker's method and return its plain value.

        The deadline counts from when environments last got on: those of this host, or whichever
        `progress_s` tells of.
        """
        ...

    async def map_pool(self, pool: RowPool) -> None:
        """Make a pool's rows visible to the host's workers."""
        ...

    async def explain(self, error: PeerTimeout | PeerGone) -> EngineError:
        """What happened to this host that somebody met `error`: its end, or what it is doing."""
        ...

    def doing(self) -> str:
        """What the host does now, in words."""
        ...

    def progress_s(self) -> float:
        """When its environments last got on, by `time.perf_counter`; 0 if they never did."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds of a process of its own so far; 0 for one that shares the controller's."""
        ...

    def peak_bytes(self) -> int:
        """The largest resident size so far."""
        ...

    def move(self, cores: Collection[int]) -> None:
        """Let it run on `cores` only, from now on."""
        ...

    async def close(self) -> None:
        """End the host; bounded in time, never raises for a host that is already gone."""
        ...


class ProcessHost:
    """A spawned process behind a link. Owned by `Cluster`, which routes its messages here."""

    def __init__(
        self,
        process: HostProcess,
        router: Router,
        caller: Caller,
        stage: str,
        board: BoardFile | None = None,
    ) -> None:
        self.name = process.name
        self.process = process
        self._board = board
        self.stage = stage
        self.said_hello = asyncio.Event()
        self.heartbeat: Heartbeat | None = None
        self.heard_s = time.monotonic()
        self.lost: WorkerLost | None = None
        self._ended = asyncio.Event()
        self._router, self._caller = router, caller

    async def call(
        self,
        worker: str,
        method: str,
        arguments: dict[str, Any],
        *,
        deadline_s: float,
        progress_s: Callable[[], float] | None = None,
    ) -> Any:
        """Run the method in the process; on expiry the error carries the process's stacks."""
        if self.lost is not None:
            raise self.lost
        try:
            value, _ = await self._caller.call(
                self.name,
                worker,
                method,
                arguments,
                deadline_s=deadline_s,
                progress_s=progress_s or self.progress_s,
            )
        except (PeerTimeout, PeerGone) as error:
            raise await self.explain(error) from None
        return value

    async def map_pool(self, pool: RowPool) -> None:
        """Attach the pool in the process."""
        arguments = {"descriptor": pool.descriptor.to_json()}
        await self.call("host", "map_pool", arguments, deadline_s=START_DEADLINE_S)

    def doing(self) -> str:
        """The last heartbeat's command and its age."""
        if self.heartbeat is None:
            return "starting"
        return f"{self.heartbeat.command} {self.heartbeat.command_age_s:.1f} s"

    def progress_s(self) -> float:
        """When a step or reset of its environments last began or ended."""
        return 0.0 if self._board is None else self._board.board.last_note_s()

    @property
    def board(self) -> Board | None:
        """What its environments are doing; None once it is closed."""
        return None if self._board is None else self._board.board

    def at_work_on(self) -> str:
        """`, in step 3 of the episode of slot 7`: also of a process that has ended."""
        doing = [] if self._board is None else self._board.board.doing()
        return f", in {doing[0]}" if doing else ""

    def cpu_s(self) -> float:
        """User and system seconds of the process, from /proc."""
        return process_cpu_s(self.process.pid)

    def peak_bytes(self) -> int:
        """The largest resident size of the process, from /proc."""
        return process_peak_bytes(self.process.pid)

    def move(self, cores: Collection[int]) -> None:
        """Change the affinity of the process and of those that it has started."""
        if self.lost is None:
            affinity.move(self.process.pid, cores)

    def last_command(self) -> str:
        """The oldest unanswered call, or what the last heartbeat said."""
        pending = self._caller.pending_calls(self.name)
        if pending:
            return _words(pending[0]) + self.at_work_on()
        return self.heartbeat.command if self.heartbeat is not None else "start-up"

    def current_stage(self) -> str:
        """The role of the worker that the oldest unanswered call is for, else the host's roles."""
        pending = [about(call) for call in self._caller.pending_calls(self.name)]
        return next((worker for worker, _ in pending if worker in ROLES), self.stage)

    def lose(self, error: WorkerLost) -> None:
        """Every present and later call ends with `error`."""
        self.lost = error
        self.said_hello.set()
        self._ended.set()
        self._caller.fail_peer(self.name, error)

    async def close(self) -> None:
        """Ask it to leave, then kill what remains."""
        try:
            if self.process.poll() is None and self.lost is None and self.said_hello.is_set():
                await self._router.drain(self.name, deadline_s=LEAVE_BUDGET_S)
                self._router.send(self.name, Note(topic="leave", value=None))
                await self.process.wait_exit(LEAVE_BUDGET_S)
        except Exception as late:
            get_logger().warning("host_close_failed", host=self.name, error=repr(late))
        finally:
            self.process.close()
            if self._board is not None:
                self._board.close()
                self._board = None

    async def explain(self, error: PeerTimeout | PeerGone) -> EngineError:
        """The process's end, or its stacks (SIGUSR1 makes it print them)."""
        if isinstance(error, PeerGone):
            # A link breaks a moment before the end of its process is seen, which says more.
            with contextlib.suppress(PeerTimeout):
                async with deadline(GONE_BUDGET_S, waiting_for=f"{self.name} to end"):
                    await self._ended.wait()
        if self.lost is not None or isinstance(error, PeerGone):
            return self.lost or error
        if self.process.poll() is None:
            signal.pidfd_send_signal(self.process.pidfd, signal.SIGUSR1)
            await asyncio.sleep(0.2)
        stacks = self.process.stderr_tail(30)
        doing = self.doing() + self.at_work_on()
        return PeerTimeout(f"{error}; it is in {doing}; its stacks:\n{stacks}")


class Cluster:
    """Spawns hosts, hears them and notices their end."""

    def __init__(
        self, folder: RuntimeFolder, logs: Path, script: Path | None, watched: Watched
    ) -> None:
        self._logs, self._script, self._watched = logs, script, watched
        self._router = Router(folder.socket_address("controller"), receive=self._receive)
        self._caller = Caller(self._router, build_error=self._build_error)
        self._hosts: dict[str, ProcessHost] = {}
        self._first_loss: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()
        self._closing = False

    def spawn(
        self,
        name: str,
        *,
        roles: Sequence[str],
        cores: Sequence[int],
        interpreter: str | None = None,
        script: bool = True,
    ) -> ProcessHost:
        """Start a host process; `ready` waits for it.

        `interpreter`: its Python, None for this one. Without `script` it does not import the
        user's script, whose imports that Python may not have.
        """
        arguments = ["-m", "rlinf_async.execution.host", name, self._router.address]
        arguments.append(str(self._logs))
        if script and self._script is not None:
            arguments.append(str(self._script))
        board = BoardFile(name)
        ring = self._watched.ring(name)
        try:
            process = HostProcess.spawn(
                name,
                arguments,
                interpreter=interpreter or sys.executable,
                cores=cores,
                threads=1,
                environment={
                    BOARD_VARIABLE: str(board.descriptor),
                    RING_VARIABLE: str(ring.descriptor),
                },
                log_folder=self._logs,
                inherited=(board.descriptor, ring.descriptor),
            )
        except BaseException:
            board.close()
            raise
        host = ProcessHost(process, self._router, self._caller, "+".join(roles), board)
        self._hosts[name] = host
        process.on_exit(asyncio.get_running_loop(), self._exited)
        return host

    async def ready(self) -> None:
        """Wait until every host has said hello; on expiry name those that have not."""
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                for host in self._hosts.values():
                    await host.said_hello.wait()
                    if host.lost is not None:
                        raise host.lost
        except TimeoutError:
            missing = [h.name for h in self._hosts.values() if not h.said_hello.is_set()]
            raise PeerTimeout(
                f"gave up after {START_DEADLINE_S:g} s waiting for {', '.join(missing)} to start; "
                f"see {self._logs}"
            ) from None

    async def watch(self) -> None:
        """Endless: raises the first loss of a host."""
        while not self._first_loss.done():
            await asyncio.wait([self._first_loss], timeout=1.0)
            self._look_for_silence()
        raise self._first_loss.result()

    async def close(self) -> None:
        """End all hosts side by side, then the socket."""
        self._closing = True
        async with asyncio.TaskGroup() as group:
            for host in self._hosts.values():
                group.create_task(host.close())
        self._router.close()

    def stage_totals(self) -> dict[str, dict[str, float]]:
        """Seconds per stage and kind of all hosts, as of their last heartbeats."""
        beats = [h.heartbeat for h in self._hosts.values() if h.heartbeat is not None]
        return {stage: totals for beat in beats for stage, totals in beat.stages.items()}

    def _receive(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        host = self._hosts.get(peer)
        if host is None:
            return
        host.heard_s = time.monotonic()
        if isinstance(message, Hello):
            host.said_hello.set()
        elif isinstance(message, Heartbeat):
            host.heartbeat = message
        else:
            self._caller.complete(peer, message, frames)

    def _exited(self, process: HostProcess) -> None:
        if self._closing:
            return
        host = self._hosts[process.name]
        error = WorkerLost(
            host.name,
            stage=host.current_stage(),
            command=host.last_command(),
            exit_code=process.poll(),
            stderr_tail=process.stderr_tail(CRASH_LINES),
        )
        self._lose(host, error)

    def _look_for_silence(self) -> None:
        for host in self._hosts.values():
            silent_s = time.monotonic() - host.heard_s
            if host.heartbeat is not None and silent_s > SILENT_LIMIT_S:
                error = WorkerLost(
                    host.name,
                    stage=host.current_stage(),
                    command=host.last_command(),
                    silent_s=silent_s,
                    stderr_tail=host.process.stderr_tail(),
                )
                self._lose(host, error)

    def _lose(self, host: ProcessHost, error: WorkerLost) -> None:
        get_logger().error("worker_lost", host=host.name, error=str(error))
        if not self._first_loss.done():
            self._first_loss.set_result(error)
        host.lose(error)

    def _build_error(self, peer: str, call: Call, failure: Failure) -> Exception:
        if failure.kind == BadInput.__name__:
            return BadInput.relayed(failure.message)
        for kind in (PeerTimeout, PeerGone):
            if failure.kind == kind.__name__:
                return kind(failure.message)
        return worker_failed(peer, call, failure)


def _words(call: Call) -> str:
    plain = {k: v for k, v in call.arguments.items() if isinstance(v, int | float | str)}
    arguments = ", ".join(f"{key}={value}" for key, value in plain.items())
    return f"{call.worker}.{call.method}({arguments})"
