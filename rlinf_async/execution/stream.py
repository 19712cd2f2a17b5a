"""The bounded, closable, measured FIFO between two stages of one event loop.

Every method must be called on the loop's thread. How waiting works: waiters keep their place in a
queue until they have run. Each change wakes as many waiting readers as there are items for them
(writers: as there is space), oldest first, and a newcomer queues behind them. So nobody is
overtaken, and a waiter that is cancelled after it was woken leaves its item or space to the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from rlinf_async.errors import EngineError, StreamClosed
from rlinf_async.tracing.waits import StageClock, Wait

T = TypeVar("T")

_Waiters = deque[asyncio.Future[None]]


class Stream(Generic[T]):
    """Bounded FIFO between stages; closing it ends the readers' `async for`.

    Several writers and readers may share it; each item goes to exactly one reader. Cancelling a
    `put` means that the item is not in the stream, cancelling a `get` that no item was taken.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity: int,
        writer: StageClock | None = None,
        reader: StageClock | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"stream {name!r}: capacity must be >= 1, got {capacity}")
        self.name = name
        self.capacity = capacity
        self.writer = writer
        """Charged with `space` waits on this stream; may be set later."""
        self.reader = reader
        """Charged with `input` waits on this stream; may be set later."""
        self.put_count = 0
        """Items ever accepted."""
        self.got_count = 0
        """Items ever delivered; `put_count - got_count - dropped_count` are in the stream."""
        self.dropped_count = 0
        """Items taken out by `drain`."""
        self.peak = 0
        """The most items ever held at once."""
        self._put_wait_ns = self._get_wait_ns = 0
        self._clock_ns = clock_ns
        self.guard: Callable[[], None] | None = None
        """Called before each `get`; raises where the item could never come."""
        self._items: deque[T] = deque()
        self._readers: _Waiters = deque()
        self._writers: _Waiters = deque()
        self._closed = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        """A stream is true even when it is empty, so that `if stream` asks whether there is one."""
        return True

    @property
    def closed(self) -> bool:
        """Whether `close` or `fail` was called."""
        return self._closed

    @property
    def put_wait_s(self) -> float:
        """Seconds that writers have waited for space, all added up."""
        return self._put_wait_ns / 1e9

    @property
    def get_wait_s(self) -> float:
        """Seconds that readers have waited for an item, all added up."""
        return self._get_wait_ns / 1e9

    async def put(self, item: T) -> None:
        """Append `item`, waiting for space; StreamClosed once closed, also while waiting."""
        self._check_writable()
        if self._writers or not self._space():
            began_ns = self._clock_ns()
            try:
                with _charge(self.writer, Wait.SPACE, self.name):
                    await self._wait_in(self._writers)
            finally:
                self._put_wait_ns += self._clock_ns() - began_ns
            self._check_writable()
        self._append(item)

    def put_nowait(self, item: T) -> None:
        """Append `item` from a callback whose credits promise space; EngineError without it."""
        self._check_writable()
        if self._space() <= len(self._writers):
            raise EngineError(
                f"stream {self.name!r} was given an item without space for it: "
                f"{len(self._items)} of {self.capacity} held, {len(self._writers)} writers waiting"
            )
        self._append(item)

    async def get(self) -> T:
        """Take the oldest item, waiting for one; StreamClosed once closed and empty."""
        if self.guard is not None:
            self.guard()
        self._check_readable()
        if self._readers or not self._items:
            began_ns = self._clock_ns()
            try:
                with _charge(self.reader, Wait.INPUT, self.name):
                    await self._wait_in(self._readers)
            finally:
                self._get_wait_ns += self._clock_ns() - began_ns
            self._check_readable()
        item = self._items.popleft()
        self.got_count += 1
        self._wake()
        return item

    def close(self) -> None:
        """Accept nothing more; what is held is still delivered. Waiting writers get StreamClosed.

        Idempotent, and never waits, so that it can stand in a `finally`.
        """
        self._closed = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End at once: every present and later `put` and `get` raises `error` (the first one)."""
        if self._error is None:
            self._closed, self._error = True, error
            self._wake()

    def drain(self) -> list[T]:
        """Close, and take out all items at once, to free what they hold; counted as dropped."""
        self._closed = True
        items = list(self._items)
        self._items.clear()
        self.dropped_count += len(items)
        self._wake()
        return items

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.get()
        except StreamClosed:
            if self._error is not None:
                raise
            raise StopAsyncIteration from None

    def _space(self) -> int:
        return self.capacity - len(self._items)

    def _append(self, item: T) -> None:
        self._items.append(item)
        self.put_count += 1
        self.peak = max(self.peak, len(self._items))
        self._wake()

    def _check_writable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise StreamClosed(f"put into stream {self.name!r} after it was closed")

    def _check_readable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed and not self._items:
            raise StreamClosed(f"stream {self.name!r} is closed and empty")

    async def _wait_in(self, waiters: _Waiters) -> None:
        """Wait to be woken; leaves the queue in any case and passes on a wake it cannot use."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(turn)  # whoever is ahead wakes the next one when leaving
        served = False
        try:
            await turn
            served = True
        finally:
            waiters.remove(turn)
            if not served:
                self._wake()

    def _wake(self) -> None:
        # An ended stream wakes everybody whom it has to refuse; they look at its state and raise.
        everyone_reads = self._error is not None or (self._closed and not self._items)
        _wake_first(self._readers, len(self._readers) if everyone_reads else len(self._items))
        _wake_first(self._writers, len(self._writers) if self._closed else self._space())


def _wake_first(waiters: _Waiters, count: int) -> None:
    for turn, _ in zip(waiters, range(count), strict=False):
        if not turn.done():
            turn.set_result(None)


def _charge(clock: StageClock | None, state: Wait, on: str) -> AbstractContextManager[None]:
    return nullcontext() if clock is None else clock.waiting(state, on)
