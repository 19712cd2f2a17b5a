"""The main of a host process: `python -m rlinf_async.execution.host NAME ADDRESS LOGS [SCRIPT]`.

It settles first (affinity, parent-death signal), then loads what workers need, says hello to the
controller and performs calls until it is told to leave or its controller is gone.
"""

from __future__ import annotations

import os
import sys

from rlinf_async.hardware.child import parent_pidfd, settle_from_environment

if __name__ == "__main__":
    # Before anything that loads numpy: it reads cores and thread counts once, at import.
    settle_from_environment()

import asyncio
import contextlib
import faulthandler
import signal
from pathlib import Path
from typing import Any

import uvloop

from rlinf_async.communication.calls import Caller
from rlinf_async.communication.link import Dealer, Router
from rlinf_async.communication.messages import Call, Failure, Heartbeat, Hello, Message, Note, Reply
from rlinf_async.errors import BadInput, PeerGone
from rlinf_async.execution.host_core import HostCore
from rlinf_async.execution.logs import bind, configure, get_logger
from rlinf_async.execution.script import load_script
from rlinf_async.execution.telling import rss_bytes, tell
from rlinf_async.hardware import activity
from rlinf_async.tracing.recorder import Recorder, install
from rlinf_async.tracing.ring import take_inherited

HEARTBEAT_S = 0.5
HELLO_DEADLINE_S = 30.0
CLOSE_BUDGET_S = 1.0


class HostProcessMain:
    """The loop side of a host: links, heartbeats, and one task per call."""

    def __init__(self, name: str, address: str, recorder: Recorder) -> None:
        self._name, self._address = name, address
        self._leaving = asyncio.Event()
        self._core = HostCore(name, recorder=recorder, remote=self._call_peer)
        self._dealer: Dealer | None = None
        self._router: Router | None = None
        self._peer_dealers: list[Dealer] = []
        self._peer_caller: Caller | None = None
        self._tasks: asyncio.TaskGroup
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the controller says `leave` or ends."""
        asyncio.get_running_loop().add_reader(parent_pidfd(), _controller_is_gone)
        self._dealer = Dealer(self._address, identity=self._name, receive=self._on_controller)
        async with asyncio.TaskGroup() as self._tasks:
            hello = Hello.of_this_process(self._name)
            await self._dealer.open(hello, deadline_s=HELLO_DEADLINE_S)
            beats = self._tasks.create_task(self._beat(), name="heartbeat")
            await self._leaving.wait()
            # What still runs here is not wanted any more; a busy work thread is a daemon.
            beats.cancel()
            for task in tuple(self._serving):
                task.cancel()
        await self._core.close(CLOSE_BUDGET_S)
        for link in (*self._peer_dealers, self._router, self._dealer):
            if link is not None:
                link.close()

    def _on_controller(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        assert self._dealer is not None
        if isinstance(message, Call):
            self._start(self._dealer, peer, message)
        elif isinstance(message, Note) and message.topic == "leave":
            self._leaving.set()

    def _start(self, link: Dealer, peer: str, call: Call) -> None:
        task = self._tasks.create_task(self._serve(link, peer, call))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, link: Dealer, peer: str, call: Call) -> None:
        """One call, which always ends in one answer."""
        answer: Reply | Failure
        try:
            value = await self._perform(call)
            answer = Reply(call_id=call.call_id, value=value)
        except Exception as error:
            get_logger().error(
                "call_failed", worker=call.worker, method=call.method, error=repr(error)
            )
            answer = Failure.of(call.call_id, error)
        # A peer that is gone needs no answer; its end is noticed elsewhere.
        with contextlib.suppress(PeerGone):
            link.send(peer, answer)

    async def _perform(self, call: Call) -> Any:
        if call.worker != "link":
            return await self._core.perform(call.worker, call.method, call.arguments)
        if call.method == "listen":
            self._listen(**call.arguments)
        elif call.method == "connect":
            await self._connect(**call.arguments)
        else:
            raise BadInput(self._name, f"no link command {call.method!r}")
        return None

    def _listen(self, address: str) -> None:
        self._router = Router(address, receive=self._on_peer_answer)
        self._peer_caller = Caller(self._router)

    async def _connect(self, address: str, peer: str) -> None:
        def receive(sender: str, message: Message, frames: list[memoryview]) -> None:
            if isinstance(message, Call):
                self._start(dealer, sender, message)

        dealer = Dealer(address, identity=self._name, receive=receive, peer=peer)
        self._peer_dealers.append(dealer)
        await dealer.open(Hello.of_this_process(self._name), deadline_s=HELLO_DEADLINE_S)

    def _on_peer_answer(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        assert self._peer_caller is not None
        self._peer_caller.complete(peer, message, frames)

    async def _call_peer(
        self, host: str, worker: str, method: str, arguments: dict[str, Any], deadline_s: float
    ) -> Any:
        if self._peer_caller is None:
            raise PeerGone(f"{self._name} has no direct link to {host}")
        value, _ = await self._peer_caller.call(
            host, worker, method, arguments, deadline_s=deadline_s
        )
        return value

    async def _beat(self) -> None:
        assert self._dealer is not None
        while True:
            heartbeat = Heartbeat(
                host=self._name,
                command=self._core.command,
                command_age_s=self._core.command_age_s(),
                rss_bytes=rss_bytes(),
                stages=self._core.recorder.stage_totals(),
                counters={},
            )
            self._dealer.send(self._dealer.peer, heartbeat)
            tell(
                self._core.recorder,
                command=heartbeat.command,
                command_age_s=heartbeat.command_age_s,
            )
            self._core.look_after_environments()
            await asyncio.sleep(HEARTBEAT_S)


def _controller_is_gone() -> None:
    # Nothing to save and nobody to tell: the kernel frees rows with their last holder.
    os._exit(1)


def main() -> None:
    """Entry point of the process."""
    name, address, logs, *script = sys.argv[1:]
    configure(name, Path(logs))
    bind(worker=name)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Both are inherited and taken now, so that no child of ours looks for them.
    activity.current()
    recorder = install(name, memory=take_inherited())
    if script:
        load_script(script[0])

    async def serve() -> None:
        await HostProcessMain(name, address, recorder).run()

    uvloop.run(serve())
    # A thread stuck in native code must not keep a host alive that has been told to leave.
    os._exit(0)


if __name__ == "__main__":
    main()
