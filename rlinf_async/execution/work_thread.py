"""One daemon thread that runs a host's computations in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

_Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class WorkThread:
    """Runs functions off the loop, one at a time; a daemon, so a stuck one never blocks exit."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._running: asyncio.Future[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        _threads.add(self)
        self._thread.start()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Await `work(*arguments)`. Cancelling the wait does not stop work that has begun."""
        done: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put((done, work, arguments))
        return await done

    def give_up(self, error: Exception) -> bool:
        """End the wait for the job that runs now with `error`; False if none does.

        The thread itself cannot be stopped and stays busy. The error gets its stack as a note.
        """
        running = self._running
        if running is None or running.done():
            return False
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is not None:
            stack = "".join(traceback.format_stack(frame))
            error.add_note(f"stack of the thread that does not go on:\n{stack}")
        running.set_exception(error)
        return True

    @property
    def alive(self) -> bool:
        """Whether the thread goes on: it was not stopped, or is still busy."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let the thread end after the jobs that it has; does not wait for it."""
        self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, work, arguments = job
            if done.cancelled():
                continue
            self._running = done
            try:
                result, error = work(*arguments), None
            except BaseException as failure:
                result, error = None, failure
            self._running = None
            self._tell(done, result, error)

    def _tell(self, done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, done, result, error)
        except RuntimeError:
            # The loop closed while the work ran; nobody is left to hear of it.
            return


_threads: weakref.WeakSet[WorkThread] = weakref.WeakSet()


def any_alive() -> bool:
    """Whether a work thread of this process goes on."""
    return any(thread.alive for thread in _threads)


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    elif isinstance(error, StopIteration | KeyboardInterrupt | SystemExit):
        done.set_exception(RuntimeError(f"worker code raised {error!r}"))
    else:
        done.set_exception(error)
