"""What the communication tests share: a private folder, both loops, real peers, no leftovers."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from rlinf_async.communication.link import Router
from rlinf_async.communication.runtime_folder import RuntimeFolder

PEER = Path(__file__).with_name("peer.py")


@pytest.fixture
def folder():
    folder = RuntimeFolder.create()
    yield folder
    folder.remove()


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request):
    return request.param


@pytest.fixture
def run(loop_kind):
    """Run a coroutine on one of the two loops; errors that only the loop heard of fail the test."""
    errors = []

    async def guarded(coroutine):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        async with asyncio.timeout(30):
            return await coroutine

    def run(coroutine):
        runner = uvloop.run if loop_kind == "uvloop" else asyncio.run
        result = runner(guarded(coroutine))
        assert not errors
        return result

    return run


@pytest.fixture
def peers(loop_kind):
    """Start `peer.py` processes; they are killed at the end."""
    started = []

    def start(address, identity, mode):
        command = [sys.executable, str(PEER), address, identity, mode, loop_kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


class Desk:
    """A router that collects what it receives and lets tests wait for it."""

    def __init__(self, address):
        self.inbox = []
        self.errors = []
        self._news = asyncio.Event()
        self.handlers = []
        self.router = Router(address, receive=self._receive, on_error=self._note_error)

    def _receive(self, peer, message, frames):
        for handler in self.handlers:
            if handler(peer, message, frames):
                return
        self.inbox.append((peer, message, frames))
        self._news.set()

    def _note_error(self, peer, error):
        self.errors.append((peer, error))
        self._news.set()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def greeted(self, *peers):
        await self.until(lambda: set(peers) <= set(self.router.peers))


@pytest.fixture
def open_desk():
    @contextlib.contextmanager
    def open_desk(address):
        desk = Desk(address)
        try:
            yield desk
        finally:
            desk.router.close()

    return open_desk
