"""One host process: how it is started, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from rlinf_async.errors import BadInput, PeerTimeout
from rlinf_async.hardware.child import CORES_VARIABLE, PARENT_VARIABLE

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_TAIL_BYTES = 64 * 1024
_REAP_S = 10.0
"""How long a killed process may take to vanish (a driver can hold it in the kernel)."""


class HostProcess:
    """A freshly spawned process, known by its pidfd so that no signal reaches a recycled pid.

    It leads a process group of its own: a terminal's Ctrl-C does not reach it, and whatever it
    started itself is killed with it.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        self.pid = popen.pid
        self.pidfd = os.pidfd_open(popen.pid)
        self._popen = popen
        self._callbacks: list[Callable[[HostProcess], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @classmethod
    def spawn(
        cls,
        name: str,
        arguments: Sequence[str],
        *,
        interpreter: str = sys.executable,
        cores: Sequence[int],
        threads: int,
        environment: Mapping[str, str],
        log_folder: Path,
        inherited: Sequence[int] = (),
    ) -> Self:
        """Start `interpreter *arguments`; its stdout and stderr go to `log_folder/<name>.err`.

        The child must call `rlinf_async.hardware.child.settle_from_environment()` first of all.
        `environment` is laid over this process's own; the child keeps the `inherited` descriptors
        under their numbers. Call it from the main thread: Linux sends
        the parent-death signal when the *thread* that started the child ends.

        Raises:
            BadInput: the interpreter or the log folder cannot be used.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"host {name} must be started from the main thread")
        log_file = log_folder / f"{name}.err"
        with _open_log(log_file, name) as log:
            variables = _environment(environment, cores, threads)
            popen = _start(name, [interpreter, *arguments], variables, log, inherited)
        try:
            return cls(name, popen, log_file)
        except OSError as cause:
            popen.kill()
            popen.wait(_REAP_S)
            raise BadInput(
                f"host {name}", f"cannot watch it: {cause.strerror}", fix="raise `ulimit -n`"
            ) from cause

    def poll(self) -> int | None:
        """Exit code (negative: the signal that killed it), or None while it runs.

        What the host left running in its process group is killed before the host is reaped, while
        the group's number still cannot belong to anybody else.
        """
        if self._popen.returncode is None and self._has_exited():
            self._signal_group(signal.SIGKILL)
            self._popen.wait()
        return self._popen.returncode

    def on_exit(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[HostProcess], None]
    ) -> None:
        """Call `callback(self)` once in `loop` when the process has ended (soon, if it has)."""
        self._callbacks.append(callback)
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self.pidfd, self._exited)

    async def wait_exit(self, deadline_s: float) -> int:
        """The exit code; PeerTimeout if the process still runs after `deadline_s` seconds."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wake(_: HostProcess) -> None:
            ended.set()

        if self.poll() is None:
            self.on_exit(loop, wake)
            try:
                async with asyncio.timeout(deadline_s) as scope:
                    await ended.wait()
            except TimeoutError as cause:
                if not scope.expired():
                    raise
                raise self._still_runs(deadline_s) from cause
            finally:
                with contextlib.suppress(ValueError):
                    self._callbacks.remove(wake)
        return self._exit_code()

    def join(self, deadline_s: float) -> int:
        """`wait_exit` that blocks, for use outside a loop."""
        if self.poll() is None:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            poller.poll(deadline_s * 1000)
            if self.poll() is None:
                raise self._still_runs(deadline_s)
        return self._exit_code()

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM); nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its process group at once (SIGKILL); nothing if it has ended."""
        if self.poll() is None:
            # The child makes its group before it executes, so the group exists once spawn returns.
            self._signal_group(signal.SIGKILL)

    def stderr_tail(self, lines: int = 20) -> str:
        """The last lines of what the process printed; empty if there is nothing."""
        try:
            with self.log_file.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """Kill what still runs, reap it, release the descriptor. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        self.kill()
        try:
            self._popen.wait(_REAP_S)
        except subprocess.TimeoutExpired as cause:
            raise self._still_runs(_REAP_S) from cause
        finally:
            os.close(self.pidfd)

    def _has_exited(self) -> bool:
        waited = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return waited is not None

    def _exit_code(self) -> int:
        code = self.poll()
        if code is None:
            raise RuntimeError(f"host {self.name} has not exited")
        return code

    def _exited(self) -> None:
        if self.poll() is None:
            return
        self._unwatch()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _unwatch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.pidfd)
        self._loop = None

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _still_runs(self, deadline_s: float) -> PeerTimeout:
        return PeerTimeout(
            f"gave up after {deadline_s:g} s waiting for host {self.name} (pid {self.pid}) to exit"
        )


def _open_log(file: Path, name: str) -> IO[bytes]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("ab")
    except OSError as cause:
        raise BadInput(
            f"host {name}",
            f"cannot write its log {file}: {cause.strerror}",
            fix="choose a run folder that you may write to",
        ) from cause


def _start(
    name: str,
    command: list[str],
    variables: dict[str, str],
    log: IO[bytes],
    inherited: Sequence[int],
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            close_fds=True,
            pass_fds=tuple(inherited),
            process_group=0,
        )
    except OSError as cause:
        raise BadInput(
            f"host {name}",
            f"cannot start {command[0]}: {cause.strerror}",
            fix="check that the interpreter exists and may be executed",
        ) from cause


def _environment(extra: Mapping[str, str], cores: Sequence[int], threads: int) -> dict[str, str]:
    """The child's variables: thread counts must stand before the interpreter starts."""
    return {
        **os.environ,
        **extra,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        CORES_VARIABLE: ",".join(str(core) for core in cores),
        PARENT_VARIABLE: str(os.getpid()),
    }
