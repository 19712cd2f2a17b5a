"""Streams: order, bounds, ends, cancellation and what waiting costs whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rlinf_async.errors import EngineError, StreamClosed
from rlinf_async.execution.stream import Stream
from rlinf_async.tracing.waits import StageClock
from tests.fixtures.clock import FakeClock, settle
from tests.fixtures.loops import in_loop


class Boom(Exception):
    pass


@in_loop
async def test_items_arrive_in_order_and_the_loop_ends_after_close():
    stream: Stream[int] = Stream("numbers", capacity=2)
    got: list[int] = []

    async def write() -> None:
        for number in range(10):
            await stream.put(number)
        stream.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        async for number in stream:
            got.append(number)
    assert got == list(range(10))
    assert (stream.put_count, stream.got_count, len(stream)) == (10, 10, 0)
    assert 1 <= stream.peak <= 2


@in_loop
async def test_put_waits_for_space():
    stream: Stream[int] = Stream("numbers", capacity=1)
    await stream.put(0)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(stream.put(1))
        await settle()
        assert not second.done()
        assert await stream.get() == 0
        await settle()
        assert second.done()
    assert len(stream) == 1


@in_loop
async def test_close_is_idempotent_and_delivers_what_is_held():
    stream: Stream[str] = Stream("words", capacity=3)
    await stream.put("a")
    await stream.put("b")
    stream.close()
    stream.close()
    with pytest.raises(StreamClosed, match="words"):
        await stream.put("c")
    assert [word async for word in stream] == ["a", "b"]
    with pytest.raises(StreamClosed, match="closed and empty"):
        await stream.get()


@in_loop
async def test_close_refuses_waiting_writers_and_readers():
    full: Stream[int] = Stream("full", capacity=1)
    empty: Stream[int] = Stream("empty", capacity=1)
    await full.put(0)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(outcome(full.put(1))), group.create_task(outcome(empty.get()))]
        await settle()
        full.close()
        empty.close()
    assert [type(task.result()) for task in waiting] == [StreamClosed, StreamClosed]
    assert await full.get() == 0


@in_loop
async def test_fail_reaches_present_and_later_users_at_once():
    stream: Stream[int] = Stream("numbers", capacity=1)
    await stream.put(0)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(outcome(stream.put(1)))
        await settle()
        stream.fail(Boom("first"))
        stream.fail(Boom("second"))
        stream.close()
    assert str(writer.result()) == "first"
    for use in (stream.get, lambda: stream.put(2), stream.__anext__):
        with pytest.raises(Boom, match="first"):
            await use()
    assert stream.drain() == [0]
    assert stream.dropped_count == 1


@in_loop
async def test_failing_with_stream_closed_does_not_look_like_a_clean_end():
    stream: Stream[int] = Stream("numbers", capacity=1)
    stream.fail(StreamClosed("upstream broke"))
    with pytest.raises(StreamClosed, match="upstream"):
        async for _ in stream:
            pass


@in_loop
async def test_a_reader_cancelled_after_it_was_woken_leaves_the_item_to_the_next():
    stream: Stream[int] = Stream("numbers", capacity=1)
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(outcome(stream.get())) for _ in range(2))
        await settle()
        stream.put_nowait(7)
        first.cancel()
    assert first.cancelled()
    assert second.result() == 7


@in_loop
async def test_a_writer_cancelled_after_it_was_woken_leaves_the_space_to_the_next():
    stream: Stream[str] = Stream("words", capacity=1)
    await stream.put("a")
    async with asyncio.TaskGroup() as group:
        first, _ = (group.create_task(stream.put(word)) for word in "bc")
        await settle()
        assert await stream.get() == "a"
        first.cancel()
    assert await stream.get() == "c"


@in_loop
async def test_the_last_item_of_a_closed_stream_survives_the_cancellation_of_its_reader():
    stream: Stream[int] = Stream("numbers", capacity=1)
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(outcome(stream.get())) for _ in range(2))
        await settle()
        stream.put_nowait(7)
        stream.close()
        first.cancel()
    assert second.result() == 7


@in_loop
async def test_drain_closes_and_frees_a_woken_reader():
    stream: Stream[int] = Stream("numbers", capacity=2)
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(outcome(stream.get()))
        await settle()
        stream.put_nowait(1)
        assert stream.drain() == [1]
    assert isinstance(reader.result(), StreamClosed)


@in_loop
async def test_put_nowait_without_space_is_an_error_of_the_engine():
    stream: Stream[int] = Stream("numbers", capacity=1)
    stream.put_nowait(0)
    with pytest.raises(EngineError, match="1 of 1 held"):
        stream.put_nowait(1)


@in_loop
async def test_waits_are_charged_to_the_stage_that_waited():
    time = FakeClock()
    writer, reader = StageClock("render", time.now_ns), StageClock("train", time.now_ns)
    stream: Stream[int] = Stream(
        "segments", capacity=1, writer=writer, reader=reader, clock_ns=time.now_ns
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.get())
        await time.advance_s(2.0)
        await stream.put(0)  # the reader takes it
        await stream.put(1)
        group.create_task(stream.put(2))
        await time.advance_s(3.0)
        assert await stream.get() == 1
    assert reader.totals_on_s() == {("input", "segments"): 2.0, ("working", ""): 3.0}
    assert writer.totals_on_s() == {("space", "segments"): 3.0, ("working", ""): 2.0}
    assert (stream.get_wait_s, stream.put_wait_s) == (2.0, 3.0)


@in_loop
async def test_nothing_is_charged_where_nobody_waits():
    time = FakeClock()
    clock = StageClock("pack", time.now_ns)
    stream: Stream[int] = Stream("batches", capacity=1, writer=clock, reader=clock)
    await stream.put(0)
    assert await stream.get() == 0
    assert set(clock.totals_on_s()) == {("working", "")}


def test_a_capacity_below_one_is_refused():
    with pytest.raises(ValueError, match=r"'numbers'.*got 0"):
        Stream("numbers", capacity=0)


async def outcome(awaitable: Awaitable[object]) -> object:
    try:
        return await awaitable
    except (StreamClosed, Boom) as error:
        return error


class StreamMachine(RuleBasedStateMachine):
    """Readers and writers come, wait, are cancelled and refused in any order of loop turns."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.tasks: list[asyncio.Task[None]] = []
        self.accepted: list[int] = []
        self.delivered: list[int] = []
        self.written_by: list[int] = []
        self.read_by: list[int] = []
        self.started = 0
        self.failed = False

    @initialize(capacity=st.integers(1, 3))
    def open(self, capacity: int) -> None:
        self.stream: Stream[int] = Stream("tested", capacity=capacity)

    @rule()
    def write(self) -> None:
        self.start(self.writing)

    @rule()
    def read(self) -> None:
        self.start(self.reading)

    def start(self, body: Callable[[int], Awaitable[None]]) -> None:
        self.started += 1
        self.tasks.append(self.loop.create_task(self.refusable(body, self.started)))

    async def refusable(self, body: Callable[[int], Awaitable[None]], number: int) -> None:
        try:
            await body(number)
        except StreamClosed:
            assert self.stream.closed
        except Boom:
            assert self.failed

    async def writing(self, number: int) -> None:
        await self.stream.put(number)
        self.accepted.append(number)
        self.written_by.append(number)

    async def reading(self, number: int) -> None:
        self.delivered.append(await self.stream.get())
        self.read_by.append(number)

    @rule()
    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    @precondition(lambda self: self.tasks)
    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick: int) -> None:
        self.tasks[pick % len(self.tasks)].cancel()

    @precondition(lambda self: self.woken())
    @rule(pick=st.integers(0, 1000))
    def cancel_a_woken_one_before_it_runs(self, pick: int) -> None:
        woken = self.woken()
        woken[pick % len(woken)].cancel()

    def woken(self) -> list[asyncio.Task[None]]:
        turns = [turn for turn in (*self.stream._readers, *self.stream._writers) if turn.done()]
        return [task for task in self.tasks if task._fut_waiter in turns]

    @precondition(lambda self: self.started > 4)
    @rule()
    def close(self) -> None:
        self.stream.close()

    @precondition(lambda self: self.started > 12)
    @rule()
    def fail(self) -> None:
        self.failed = True
        self.stream.fail(Boom())

    @rule()
    def settle(self) -> None:
        """Once everybody has run, nobody waits for what is there."""
        for _ in range(20):
            self.turn()
        waiting = [task for task in self.tasks if not task.done()]
        if self.stream.closed and (self.failed or not len(self.stream)):
            assert not waiting
        full = len(self.stream) == self.stream.capacity
        assert not (self.stream._readers and len(self.stream))
        assert not (self.stream._writers and (self.stream.closed or not full))

    @invariant()
    def nothing_is_lost_doubled_or_reordered(self) -> None:
        if not hasattr(self, "stream"):
            return
        assert self.accepted == self.delivered + list(self.stream._items)
        assert self.stream.put_count == len(self.accepted)
        assert self.stream.got_count == len(self.delivered)
        assert len(self.stream) <= self.stream.peak <= self.stream.capacity

    @invariant()
    def nobody_is_overtaken(self) -> None:
        assert self.read_by == sorted(self.read_by)
        assert self.written_by == sorted(self.written_by)

    def teardown(self) -> None:
        for task in self.tasks:
            task.cancel()
        for _ in range(20):
            self.turn()
        assert all(task.done() for task in self.tasks)
        errors = [task.exception() for task in self.tasks if not task.cancelled()]
        self.loop.close()
        assert not any(errors), errors
        self.nothing_is_lost_doubled_or_reordered()


StreamMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestStreamInterleavings = StreamMachine.TestCase
