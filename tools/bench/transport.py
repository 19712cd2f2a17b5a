"""How long does a message take, and a megabyte, beside what raw sockets, pipes and memcpy take?

Runs of all ways are interleaved, each between this process and one peer process; every figure is
the median of the runs' medians. A link's round trip: a record is encoded, sent, received by the
peer's loop and decoded, and its answer comes the same way until our handler has it. A call's adds
what awaiting costs (future, deadline, task). A row's copies 1 MB into a shared row and sends its
number; the peer copies the megabyte out before it answers.

The headline figures are for processes on cores of their own, as hosts are: a round trip then wakes
two sleeping cores, which is most of it on a virtual machine. `one_core` has the same ways with
both processes on one core: no core sleeps, nothing overlaps.

    python tools/bench/transport.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import orjson
import uvloop
import zmq

from common import ONE_THREAD, Meter, emit, machine_to_itself, median
from rlinf_async.communication.calls import Caller
from rlinf_async.communication.fields import Field
from rlinf_async.communication.link import Dealer, Router
from rlinf_async.communication.messages import Call, Hello, Message, Note, Reply, encode
from rlinf_async.communication.pool import PoolDescriptor, RowPool
from rlinf_async.communication.runtime_folder import RuntimeFolder
from rlinf_async.hardware.devices import available_cores

MEGABYTE = 1 << 20
STREAM_BYTES = 16 << 20
STREAM_ROWS = 4
DEADLINE_S = 30.0
ARGUMENTS = {"row": 3, "cell": 7, "version": 118, "start": 0, "stop": 16}
PAYLOAD = encode(Call(call_id=1000, worker="rollout.0", method="collect", arguments=ARGUMENTS))
LEAVE = b"leave"
ROW = PAYLOAD + b"row"

Measure = Callable[[int], list[float]]
"""Seconds of each of so many round trips (for a stream: seconds a byte)."""


# ---- the peer process ----


def raw_peer(address: str, described: str) -> None:
    """Blocking echo on a PAIR socket; for ROW, copy the row out first."""
    pool = RowPool.attach(PoolDescriptor.from_json(orjson.loads(described)))
    row = pool.row(0)["bytes"]
    copy = row.copy()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.linger = 1000
        socket.connect(address)
        while (data := socket.recv()) != LEAVE:
            if data == ROW:
                np.copyto(copy, row)
            socket.send(data)


def pipe_peer(descriptor: str) -> None:
    """Echo what is small; answer what is large with one byte."""
    connection = Connection(int(descriptor))
    while (data := connection.recv_bytes()) != LEAVE:
        connection.send_bytes(data if len(data) < 65536 else b"x")


def link_peer(address: str, pools: str) -> None:
    """Answer calls; for those that name a pool, copy the row out first."""
    attached = {d["name"]: RowPool.attach(PoolDescriptor.from_json(d)) for d in orjson.loads(pools)}
    copies = {name: pool.row(0)["bytes"].copy() for name, pool in attached.items()}

    async def main() -> None:
        leave = asyncio.Event()

        def receive(peer: str, message: Message, frames: list[memoryview]) -> None:
            if isinstance(message, Note):
                leave.set()
            elif isinstance(message, Call):
                if message.worker in attached:
                    row = attached[message.worker].row(message.arguments["row"])
                    np.copyto(copies[message.worker], row["bytes"])
                dealer.send(peer, Reply(call_id=message.call_id, value=message.arguments))

        dealer = Dealer(address, identity="peer", receive=receive)
        await dealer.open(Hello.of_this_process("peer"), deadline_s=DEADLINE_S)
        await leave.wait()
        dealer.close()

    uvloop.run(main())


# ---- this side ----


@contextmanager
def peer_process(
    kind: str, core: int, *arguments: str, pass_fds: tuple[int, ...] = ()
) -> Iterator[None]:
    """A peer of `kind` on `core`; it is killed if it has not left by itself."""
    command = [sys.executable, __file__, "--peer", kind, str(core), *arguments]
    process = subprocess.Popen(command, pass_fds=pass_fds, env=os.environ | ONE_THREAD)
    try:
        yield
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()


@contextmanager
def raw_zmq(address: str, core: int) -> Iterator[tuple[Measure, Measure]]:
    """Raw blocking pyzmq: round trips of the call's bytes, and of 1 MB through a row."""
    source = np.ones(MEGABYTE, np.uint8)
    field = Field(name="bytes", shape=(MEGABYTE,), dtype="uint8")
    with ExitStack() as stack:
        pool = stack.enter_context(closing(RowPool.create("raw", [field], 1)))
        row = pool.row(0)["bytes"]
        socket = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.PAIR))
        socket.bind(address)
        socket.rcvtimeo = int(DEADLINE_S * 1000)

        def plain(count: int) -> list[float]:
            return [timed(lambda: (socket.send(PAYLOAD), socket.recv())) for _ in range(count)]

        def through_row(count: int) -> list[float]:
            return [
                timed(lambda: (np.copyto(row, source), socket.send(ROW), socket.recv()))
                for _ in range(count)
            ]

        with peer_process("raw", core, address, orjson.dumps(pool.descriptor.to_json()).decode()):
            plain(10)
            yield plain, through_row
            socket.send(LEAVE)


@contextmanager
def pipe(size: int, core: int) -> Iterator[Measure]:
    """Round trips over multiprocessing.Pipe: echo if small, else one byte back."""
    ours, theirs = Pipe()
    payload = PAYLOAD if size < 65536 else bytes(size)
    descriptor = theirs.fileno()

    def measure(count: int) -> list[float]:
        return [timed(lambda: (ours.send_bytes(payload), ours.recv_bytes())) for _ in range(count)]

    with ours, peer_process("pipe", core, str(descriptor), pass_fds=(descriptor,)):
        theirs.close()
        measure(10)
        yield measure
        ours.send_bytes(LEAVE)


def memcpy(size: int) -> Measure:
    """Copies within this process."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    return lambda count: [timed(lambda: np.copyto(target, source)) for _ in range(count)]


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _call(worker: str, arguments: dict[str, Any]) -> Call:
    return Call(call_id=0, worker=worker, method="collect", arguments=arguments)


def _nothing() -> None:
    """After a round trip without a row there is nothing to give back."""


class OurSide:
    """The controller's end of a link, and two pools that the peer has attached."""

    def __init__(self, address: str, runner: asyncio.Runner, pools: dict[str, RowPool]) -> None:
        self._runner, self._pools = runner, pools
        self._megabyte = np.ones(MEGABYTE, np.uint8)
        self._stream = np.ones(STREAM_BYTES, np.uint8)
        runner.run(self._open(address))

    async def _open(self, address: str) -> None:
        self._greeted = asyncio.Event()
        self._arrived: Callable[[], None] | None = None
        self._router = Router(address, receive=self._receive)
        self._caller = Caller(self._router)

    async def greeted(self) -> None:
        """Wait for the peer's Hello."""
        async with asyncio.timeout(DEADLINE_S):
            await self._greeted.wait()

    async def leave(self) -> None:
        """Ask the peer to go."""
        self._router.send("peer", Note(topic="leave", value=None))

    async def close(self) -> None:
        """Close the link, once the peer has gone."""
        self._router.close()

    def _receive(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        if self._arrived is not None:
            self._arrived()
        elif not self._caller.complete(peer, message, frames):
            self._greeted.set()

    def link(self, count: int) -> list[float]:
        """Seconds of a record there and its answer back, handler to handler."""
        return self._runner.run(self._ping_pong(count, lambda: _call("none", ARGUMENTS), _nothing))

    def row(self, count: int) -> list[float]:
        """Seconds of 1 MB through a row, handler to handler."""
        pool, number = self._pools["megabyte"], 0

        def prepare() -> Call:
            nonlocal number
            number = pool.take()
            np.copyto(pool.row(number)["bytes"], self._megabyte)
            return _call("megabyte", {"row": number})

        return self._runner.run(self._ping_pong(count, prepare, lambda: pool.give(number)))

    async def _ping_pong(
        self, count: int, prepare: Callable[[], Call], finish: Callable[[], None]
    ) -> list[float]:
        took: list[float] = []
        done = asyncio.get_running_loop().create_future()
        start = 0.0

        def send() -> None:
            nonlocal start
            start = time.perf_counter()
            self._router.send("peer", prepare())

        def arrived() -> None:
            finish()
            took.append(time.perf_counter() - start)
            if len(took) < count:
                send()
            else:
                done.set_result(None)

        self._arrived = arrived
        send()
        async with asyncio.timeout(DEADLINE_S):
            await done
        self._arrived = None
        return took

    def call(self, count: int) -> list[float]:
        """Seconds of calls without a row."""
        return self._runner.run(self._calls(count))

    def stream(self, count: int) -> list[float]:
        """Seconds a byte of large rows, several under way."""
        return [self._runner.run(self._streamed(count)) / (count * STREAM_BYTES)]

    async def _call(self, worker: str, arguments: dict[str, Any]) -> None:
        await self._caller.call("peer", worker, "collect", arguments, deadline_s=DEADLINE_S)

    async def _calls(self, count: int) -> list[float]:
        took = []
        for _ in range(count):
            start = time.perf_counter()
            await self._call("none", ARGUMENTS)
            took.append(time.perf_counter() - start)
        return took

    async def _streamed(self, count: int) -> float:
        todo = iter(range(count))
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAM_ROWS - 1):
                group.create_task(self._pump(todo))
        return time.perf_counter() - start

    async def _pump(self, todo: Iterator[int]) -> None:
        pool = self._pools["stream"]
        for _ in todo:
            number = pool.take()
            np.copyto(pool.row(number)["bytes"], self._stream)
            await self._call("stream", {"row": number})
            pool.give(number)


@contextmanager
def our_side(address: str, core: int) -> Iterator[OurSide]:
    """A link to a peer that has attached a pool of 1 MB rows and one of large rows."""
    with ExitStack() as stack:
        sizes = {"megabyte": MEGABYTE, "stream": STREAM_BYTES}
        pools = {}
        for name, size in sizes.items():
            field = Field(name="bytes", shape=(size,), dtype="uint8")
            pools[name] = stack.enter_context(closing(RowPool.create(name, [field], STREAM_ROWS)))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        side = OurSide(address, runner, pools)
        described = orjson.dumps([pool.descriptor.to_json() for pool in pools.values()]).decode()
        with peer_process("link", core, address, described):
            runner.run(side.greeted())
            yield side
            runner.run(side.leave())
        runner.run(side.close())


def measure_all(folder: RuntimeFolder, core: int, rounds: int, scale: int) -> dict[str, float]:
    """Seconds of each way with the peers on `core`, medians over `rounds` interleaved runs."""
    with ExitStack() as stack:
        raw, raw_row = stack.enter_context(raw_zmq(folder.socket_address(f"raw {core}"), core))
        side = stack.enter_context(our_side(folder.socket_address(f"link {core}"), core))
        ways: dict[str, tuple[Measure, int]] = {
            "raw": (raw, 10 * scale),
            "link": (side.link, 10 * scale),
            "call": (side.call, 10 * scale),
            "row": (side.row, 5 * scale),
            "raw_row": (raw_row, 5 * scale),
            "stream": (side.stream, max(8, scale // 2)),
            "pipe": (stack.enter_context(pipe(len(PAYLOAD), core)), 10 * scale),
            "pipe_1mb": (stack.enter_context(pipe(MEGABYTE, core)), 3 * scale),
            "memcpy_1mb": (memcpy(MEGABYTE), 5 * scale),
            "memcpy_stream": (memcpy(STREAM_BYTES), max(4, scale // 4)),
        }
        runs: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, (measure, count) in ways.items():
                runs[name].append(median(measure(count)))
        # The first run of each warms caches and page tables up.
        return {name: median(values[1:]) for name, values in runs.items()}


def figures(seconds: dict[str, float]) -> dict[str, float]:
    """What is reported of one placement."""
    return {
        "link_round_trip_us": seconds["link"] * 1e6,
        "raw_zmq_round_trip_us": seconds["raw"] * 1e6,
        "link_over_raw": seconds["link"] / seconds["raw"],
        "call_round_trip_us": seconds["call"] * 1e6,
        "row_round_trip_1mb_us": seconds["row"] * 1e6,
        "raw_zmq_row_round_trip_1mb_us": seconds["raw_row"] * 1e6,
        "row_gb_per_s": 1e-9 / seconds["stream"],
        "pipe_round_trip_us": seconds["pipe"] * 1e6,
        "pipe_round_trip_1mb_us": seconds["pipe_1mb"] * 1e6,
        "pipe_gb_per_s": MEGABYTE * 1e-9 / seconds["pipe_1mb"],
        "memcpy_1mb_us": seconds["memcpy_1mb"] * 1e6,
        "memcpy_gb_per_s": STREAM_BYTES * 1e-9 / seconds["memcpy_stream"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs, under 60 s")
    rounds, scale = (9, 20) if parser.parse_args().quick else (25, 50)
    ours, *others = available_cores()
    # Before the first socket: ZeroMQ's thread inherits the core.
    os.sched_setaffinity(0, [ours])
    folder = RuntimeFolder.create()
    try:
        with machine_to_itself(), Meter() as meter:
            one_core = figures(measure_all(folder, ours, rounds, scale))
            apart = figures(measure_all(folder, others[-1], rounds, scale)) if others else one_core
    finally:
        folder.remove()
    os.sched_setaffinity(0, [ours, *others])
    emit(
        "transport",
        **apart,
        one_core=one_core,
        payload_bytes=len(PAYLOAD),
        rounds=rounds,
        others_cores=meter.others_cores,
        took_s=meter.wall_s,
    )


PEERS: dict[str, Callable[..., None]] = {"raw": raw_peer, "pipe": pipe_peer, "link": link_peer}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        os.sched_setaffinity(0, [int(sys.argv[3])])
        PEERS[sys.argv[2]](*sys.argv[4:])
    else:
        main()
