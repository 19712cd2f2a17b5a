"""Links: one ROUTER on one side, one DEALER per peer on the other, driven by the loop.

A socket's descriptor is edge-triggered and says only "look at the socket's events". So the loop's
reader receives until nothing is left, and after every send the events are looked at again: a send
may have swallowed the signal of a message that had just arrived. Messages of one peer arrive in
order and none is lost while both ends live.

Sends never wait. ZeroMQ's high-water marks are off because they are no bounds; what bounds a
link is what its users count: outstanding calls (`Caller`), rows of a pool, credits of a stream.

Closing: whoever closes first awaits `drain` before; lingering would not deliver reliably.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import zmq

from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.messages import (
    Drain,
    Drained,
    Failure,
    Hello,
    Message,
    Welcome,
    decode,
    encode,
)
from rlinf_async.errors import PeerGone, ProtocolError

Frame: TypeAlias = bytes | bytearray | memoryview
Frames: TypeAlias = Sequence[Frame]
Receive: TypeAlias = Callable[[str, Message, list[memoryview]], None]
OnError: TypeAlias = Callable[[str, Exception], None]

_BURST = 64
"""Messages received before the loop gets its turn again."""
_RECONNECT_MS = 10
_RECONNECT_MAX_MS = 1000


@dataclass(slots=True)
class _Peer:
    sent: int = 0
    received: int = 0
    greeted: bool = False
    drained: asyncio.Future[Drained] | None = None


class _Link:
    """What both ends share: receiving in bursts, counting, draining, closing."""

    def __init__(self, kind: int, address: str, receive: Receive, on_error: OnError | None) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._on_error = on_error or self._tell_loop
        self._peers: dict[str, _Peer] = {}
        self._closed = False
        self._scheduled = False
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)

    async def drain(self, peer: str, *, deadline_s: float) -> None:
        """Wait until `peer` has received all that was sent to it, and we all that it had sent.

        Call it before `close`. Sends of either side behind it are at their own risk.

        Raises:
            PeerGone: the peer is not connected, or was forgotten meanwhile.
            PeerTimeout: no answer in time.
            ProtocolError: the counts of the two sides differ.
        """
        state = self._peers.get(peer)
        if state is None:
            raise PeerGone(f"{self.address}: {peer} is not connected")
        if state.drained is None:
            state.drained = self._loop.create_future()
            self._send_uncounted(peer, Drain())
        sent = state.sent
        waiting_for = f"{peer} to receive the last of {sent} messages before the link closes"
        async with deadline(deadline_s, waiting_for=waiting_for):
            answer = await asyncio.shield(state.drained)
        if (answer.received, answer.sent) != (sent, state.received):
            raise ProtocolError(
                f"link to {peer} lost messages: {answer.received} of {sent} arrived there, "
                f"{state.received} of {answer.sent} here"
            )

    def forget(self, peer: str) -> None:
        """Drop what is known of a peer that has ended; a drain of it fails with PeerGone."""
        state = self._peers.pop(peer, None)
        if state is not None and state.drained is not None:
            _fail(state.drained, PeerGone(f"{self.address}: {peer} has ended"))

    def close(self) -> None:
        """Close the socket at once; what is unsent is lost. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)
        for peer in list(self._peers):
            self.forget(peer)

    def _watch(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._receive_burst)
        self._receive_later()

    def _receive_later(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._receive_burst)

    def _receive_burst(self) -> None:
        self._scheduled = False
        for _ in range(_BURST):
            if self._closed:
                return
            try:
                peer, header, frames = self._receive_one()
            except zmq.Again:
                return
            self._take_in(peer, header, frames)
        self._receive_later()

    def _receive_one(self) -> tuple[str, bytes, list[memoryview]]:
        raise NotImplementedError

    def _receive_frames(self) -> list[memoryview]:
        frames = []
        while self._socket.getsockopt(zmq.RCVMORE):
            frames.append(self._socket.recv(copy=False).buffer)
        return frames

    def _transmit(self, peer: str, parts: list[Frame]) -> None:
        try:
            self._socket.send_multipart(parts, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if self._closed or error.errno in (errno.EHOSTUNREACH, zmq.EAGAIN):
                raise PeerGone(f"{self.address}: {peer} is not connected") from error
            raise
        if cast(int, self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._receive_later()

    def _send_uncounted(self, peer: str, message: Message) -> None:
        raise NotImplementedError

    def _take_in(self, peer: str, header: bytes, frames: list[memoryview]) -> None:
        try:
            message = decode(header)
            state = self._state_of(peer, message)
            if type(message) is Drain:
                self._send_uncounted(peer, Drained(sent=state.sent, received=state.received))
                return
            if type(message) is Drained:
                if state.drained is not None and not state.drained.done():
                    state.drained.set_result(message)
                return
            state.received += 1
            self._deliver(peer, message, frames)
        except Exception as error:
            # One bad message or handler must not silence the socket: no new edge would come.
            self._on_error(peer, error)

    def _state_of(self, peer: str, message: Message) -> _Peer:
        return self._peers[peer]

    def _deliver(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        self._receive(peer, message, frames)

    def _tell_loop(self, peer: str, error: Exception) -> None:
        message = f"{self.address}: a message of {peer} could not be handled"
        self._loop.call_exception_handler({"message": message, "exception": error})


class Router(_Link):
    """The bound end, for any number of peers, each known by its dealer's identity.

    A peer's first message must be its Hello; it is answered by Welcome and then delivered.

    Args:
        receive: called in the loop as `receive(peer, message, frames)` for every message; it must
            return quickly. Frames are read-only views that stay valid as long as they are held.
        on_error: called as `on_error(peer, error)` for a message that cannot be read or whose
            `receive` raised; by default the loop's exception handler gets it.
    """

    def __init__(self, address: str, *, receive: Receive, on_error: OnError | None = None) -> None:
        super().__init__(zmq.ROUTER, address, receive, on_error)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._socket.bind(address)
        except zmq.ZMQError:
            self._socket.close(linger=0)
            raise
        self._watch()

    def send(self, peer: str, message: Message, frames: Frames = ()) -> None:
        """Queue a message to `peer`; contiguous frames are copied, so they may change afterwards.

        Raises:
            PeerGone: no such peer is connected.
        """
        state = self._peers.get(peer)
        if state is None:
            raise PeerGone(f"{self.address}: {peer} is not connected")
        self._transmit(peer, [peer.encode(), encode(message), *frames])
        state.sent += 1

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers that have said Hello and were not forgotten."""
        return tuple(self._peers)

    def _send_uncounted(self, peer: str, message: Message) -> None:
        self._transmit(peer, [peer.encode(), encode(message)])

    def _receive_one(self) -> tuple[str, bytes, list[memoryview]]:
        identity = self._socket.recv(zmq.DONTWAIT)
        # The parts of one message arrive together, so these do not wait.
        header = self._socket.recv() if self._socket.getsockopt(zmq.RCVMORE) else b""
        return identity.decode("utf-8", "replace"), header, self._receive_frames()

    def _state_of(self, peer: str, message: Message) -> _Peer:
        state = self._peers.get(peer)
        if type(message) is Hello:
            state = self._peers[peer] = _Peer(greeted=True)
        if state is None:
            raise ProtocolError(f"{peer} sent {message.tag!r} before its hello")
        return state

    def _deliver(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        if type(message) is Hello:
            self.send(peer, Welcome())
        self._receive(peer, message, frames)

    def _take_in(self, peer: str, header: bytes, frames: list[memoryview]) -> None:
        super()._take_in(peer, header, frames)
        if peer not in self._peers:
            self._refuse(peer)

    def _refuse(self, peer: str) -> None:
        """Tell a peer whose Hello could not be read, so that it need not wait for its deadline."""
        text = f"the hello of {peer} was not understood: install the same version on both sides"
        refusal = Failure(call_id=0, kind="ProtocolError", message=text, traceback="")
        try:
            self._send_uncounted(peer, refusal)
        except PeerGone:
            return


class Dealer(_Link):
    """The connected end; its only peer is the router, here called `peer`.

    Args:
        identity: how the router knows this end; unique among its peers.
        peer: the name under which the router's messages are delivered and errors speak of it.
        receive, on_error: as for Router.
    """

    def __init__(
        self,
        address: str,
        *,
        identity: str,
        receive: Receive,
        peer: str = "controller",
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(zmq.DEALER, address, receive, on_error)
        self.peer = peer
        self.identity = identity
        self._state = self._peers[peer] = _Peer()
        self._welcome: asyncio.Future[None] = self._loop.create_future()
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        self._socket.connect(address)
        self._watch()

    async def open(self, hello: Hello, *, deadline_s: float) -> None:
        """Say Hello and wait for the router's Welcome.

        Raises:
            ProtocolError: the router refused.
            PeerTimeout: no answer in time.
        """
        self.send(self.peer, hello)
        async with deadline(deadline_s, waiting_for=f"{self.peer} to welcome {self.identity}"):
            await asyncio.shield(self._welcome)

    def send(self, peer: str, message: Message, frames: Frames = ()) -> None:
        """As `Router.send`; `peer` must be the one peer."""
        if peer != self.peer or self._closed:
            raise PeerGone(f"{self.address}: {peer} is not connected to {self.identity}")
        self._transmit(peer, [encode(message), *frames])
        self._state.sent += 1

    def _send_uncounted(self, peer: str, message: Message) -> None:
        self._transmit(peer, [encode(message)])

    def _receive_one(self) -> tuple[str, bytes, list[memoryview]]:
        header = self._socket.recv(zmq.DONTWAIT)
        return self.peer, header, self._receive_frames()

    def _deliver(self, peer: str, message: Message, frames: list[memoryview]) -> None:
        if type(message) is Welcome:
            self._state.greeted = True
            if not self._welcome.done():
                self._welcome.set_result(None)
            return
        if type(message) is Failure and message.call_id == 0 and not self._state.greeted:
            _fail(self._welcome, ProtocolError(message.message))
            return
        self._receive(peer, message, frames)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """End `future` with `error`; whoever waited for it may have given up, so nobody must look."""
    if not future.done():
        future.set_exception(error)
        future.exception()
