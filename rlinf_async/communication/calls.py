"""Calls over a link: each ends in exactly one of result, error, timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from rlinf_async.communication.deadlines import gave_up
from rlinf_async.communication.link import Frames
from rlinf_async.communication.messages import Call, Failure, Message, Reply
from rlinf_async.errors import EngineError, WorkerFailed

Result: TypeAlias = tuple[Any, list[memoryview]]
BuildError: TypeAlias = Callable[[str, Call, Failure], Exception]


class CanSend(Protocol):
    """Either end of a link."""

    def send(self, peer: str, message: Message, frames: Frames = ()) -> None:
        """Queue a message; PeerGone if the peer is not connected."""
        ...


class TooManyCalls(EngineError):
    """More calls are outstanding to one peer than the bound allows."""


@dataclass(slots=True)
class _Pending:
    peer: str
    call: Call
    result: asyncio.Future[Result]


class Caller:
    """Calls to the workers behind one link, completed by the link's reader.

    Args:
        link: where calls are sent; its `receive` must pass Reply and Failure to `complete`.
        max_pending: the bound on outstanding calls to one peer, and so on what a link queues.
        build_error: makes the exception of a Failure from (peer, call, failure); by default
            `worker_failed`.
    """

    def __init__(
        self,
        link: CanSend,
        *,
        max_pending: int = 4096,
        build_error: BuildError | None = None,
    ) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._max_pending = max_pending
        self._build_error = build_error or worker_failed
        self._pending: dict[int, _Pending] = {}
        self._pending_of: dict[str, int] = {}
        self._next_id = 1
        self.late_replies = 0
        """Answers that came after their call had timed out, was cancelled or failed."""

    async def call(
        self,
        peer: str,
        worker: str,
        method: str,
        arguments: dict[str, Any],
        *,
        frames: Frames = (),
        deadline_s: float,
        waiting_for: str = "",
        progress_s: Callable[[], float] | None = None,
    ) -> Result:
        """Run `worker.method(**arguments)` at `peer`; returns (value, frames).

        A cancelled call stops waiting; its answer is then counted as late. `progress_s` tells when,
        by `time.perf_counter`, the peer last got on: the deadline counts from then.

        Raises:
            WorkerFailed (or what `build_error` makes): the method raised.
            PeerTimeout: no answer, and no progress, within `deadline_s` seconds.
            PeerGone: the peer is not connected.
            TooManyCalls: `max_pending` calls to this peer are unanswered.
        """
        call = Call(call_id=self._next_id, worker=worker, method=method, arguments=arguments)
        pending = self._register(peer, call)
        timer = _Timer(pending, deadline_s, waiting_for, progress_s)
        try:
            self._link.send(peer, call, frames)
            timer.start(deadline_s)
            return await pending.result
        finally:
            timer.cancel()
            self._drop(pending)

    def complete(self, peer: str, message: Message, frames: list[memoryview]) -> bool:
        """Take in a Reply or Failure; False if `message` is neither."""
        if not isinstance(message, Reply | Failure):
            return False
        pending = self._pending.get(message.call_id)
        if pending is None or pending.peer != peer or pending.result.done():
            self.late_replies += 1
        elif isinstance(message, Reply):
            pending.result.set_result((message.value, frames))
        else:
            pending.result.set_exception(self._build_error(peer, pending.call, message))
        return True

    def fail_peer(self, peer: str, error: Exception) -> int:
        """End every outstanding call to `peer` with `error`; returns how many there were."""
        waiting = [each for each in self._pending.values() if each.peer == peer]
        for each in waiting:
            if not each.result.done():
                each.result.set_exception(error)
        return len(waiting)

    def pending_calls(self, peer: str) -> tuple[Call, ...]:
        """The unanswered calls to `peer`, oldest first."""
        return tuple(each.call for each in self._pending.values() if each.peer == peer)

    def _register(self, peer: str, call: Call) -> _Pending:
        count = self._pending_of.get(peer, 0)
        if count >= self._max_pending:
            raise TooManyCalls(
                f"{count} calls to {peer} are unanswered, the bound is {self._max_pending}"
            )
        self._next_id += 1
        self._pending_of[peer] = count + 1
        pending = _Pending(peer, call, self._loop.create_future())
        self._pending[call.call_id] = pending
        return pending

    def _drop(self, pending: _Pending) -> None:
        del self._pending[pending.call.call_id]
        left = self._pending_of[pending.peer] - 1
        if left:
            self._pending_of[pending.peer] = left
        else:
            del self._pending_of[pending.peer]


class _Timer:
    """Ends a call after `limit_s` seconds in which neither an answer came nor progress was made."""

    def __init__(
        self,
        pending: _Pending,
        limit_s: float,
        waiting_for: str,
        progress_s: Callable[[], float] | None,
    ) -> None:
        self._pending, self._limit_s, self._waiting_for = pending, limit_s, waiting_for
        self._progress_s = progress_s
        self._handle: asyncio.TimerHandle | None = None

    def start(self, delay_s: float) -> None:
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _expire(self) -> None:
        pending = self._pending
        if pending.result.done():
            return
        if self._progress_s is not None:
            left_s = self._limit_s - (time.perf_counter() - self._progress_s())
            if left_s > 0.0:
                self.start(left_s)
                return
        what = f"{pending.peer} to run {pending.call.worker}.{pending.call.method}"
        what += f" ({self._waiting_for})" if self._waiting_for else ""
        pending.result.set_exception(gave_up(self._limit_s, what))


def worker_failed(host: str, call: Call, failure: Failure) -> WorkerFailed:
    """What `call` to `host` met; what `host` was told of a third process stays as it is."""
    if failure.kind == WorkerFailed.__name__:
        return WorkerFailed.relayed(failure.message, failure.traceback)
    worker, method = about(call)
    return WorkerFailed(
        f"{worker} in {host}",
        stage=worker,
        command=f"{worker}.{method}",
        kind=failure.kind,
        message=failure.message,
        traceback=failure.traceback,
    )


def about(call: Call) -> tuple[str, str]:
    """(worker, method) that a call is about: building one is its own `__init__`."""
    if (call.worker, call.method) == ("host", "create"):
        return str(call.arguments["name"]), "__init__"
    return call.worker, call.method
