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
import contextlib
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import zmq

from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.messages import (
    Drain,
    Drained,
    Hello,
    Message,
    Refused,
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
_HANDSHAKE = (Hello, Welcome, Refused, Drain, Drained)
# Plain integers: arithmetic on zmq's flag classes costs more than the calls they are for.
_POLLIN = int(zmq.POLLIN)
_NOW = int(zmq.DONTWAIT)
_NOW_AND_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_RECONNECT_MS = 10
_RECONNECT_MAX_MS = 1000


@dataclass(frozen=True, slots=True)
class _Counts:
    """The peer's counts, and how many of its messages we had received when they arrived."""

    theirs: Drained
    received: int


@dataclass(slots=True)
class _Peer:
    prefix: tuple[bytes, ...] = ()
    """The parts in front of every message to it: its identity, for a router."""
    sent: int = 0
    received: int = 0
    drained: asyncio.Future[_Counts] | None = None
    sent_before_drain: int = 0


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
        self._in_burst = False
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)

    def send(self, peer: str, message: Message, frames: Frames = ()) -> None:
        """Queue a message to `peer`; contiguous frames are copied, so they may change afterwards.

        Raises:
            PeerGone: no such peer is connected.
        """
        state = self._peers.get(peer)
        if state is None:
            raise PeerGone(f"{self.address}: {peer} is not connected")
        self._transmit(peer, state.prefix, message, frames)
        state.sent += 1

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
            state.sent_before_drain = state.sent
            self._transmit(peer, state.prefix, Drain())
        sent = state.sent_before_drain
        waiting_for = f"{peer} to receive the last of {sent} messages before the link closes"
        async with deadline(deadline_s, waiting_for=waiting_for):
            counts = await asyncio.shield(state.drained)
        if (counts.theirs.received, counts.theirs.sent) != (sent, counts.received):
            raise ProtocolError(
                f"link to {peer} lost messages: {counts.theirs.received} of {sent} arrived there, "
                f"{counts.received} of {counts.theirs.sent} here"
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
        if self._closed:
            return
        self._scheduled = False
        self._in_burst = True
        try:
            # Whoever wakes us mostly brings a message, so the first turn does not ask; the later
            # ones do, because a receive that raises Again costs twice as much as asking.
            for _ in range(_BURST):
                self._take_in(*self._receive_one())
                if self._closed or not self._has_message():
                    return
            self._receive_later()
        except zmq.Again:
            return
        except BaseException:
            self._receive_later()
            raise
        finally:
            self._in_burst = False

    def _has_message(self) -> bool:
        return bool(cast(int, self._socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def _receive_one(self) -> tuple[str, bytes, list[memoryview]]:
        raise NotImplementedError

    def _receive_header(self) -> tuple[bytes, list[memoryview]]:
        """The rest of a message; its parts arrive together, so nothing here waits."""
        part = self._socket.recv(_NOW, copy=False)
        header, frames = part.bytes, []
        while part.more:
            part = self._socket.recv(_NOW, copy=False)
            frames.append(part.buffer)
        return header, frames

    def _transmit(
        self, peer: str, prefix: tuple[bytes, ...], message: Message, frames: Frames = ()
    ) -> None:
        # All that can fail comes before the first part: half a message would spoil the next one.
        parts: list[bytes | memoryview] = [*prefix, encode(message)]
        if frames:
            parts += map(_contiguous, frames)
        try:
            for part in parts[:-1]:
                self._socket.send(part, _NOW_AND_MORE)
            self._socket.send(parts[-1], _NOW)
        except zmq.ZMQError as error:
            if self._closed or error.errno in (errno.EHOSTUNREACH, zmq.EAGAIN):
                raise PeerGone(f"{self.address}: {peer} is not connected") from error
            raise
        # Within a burst the next turn looks by itself.
        if not self._in_burst and self._has_message():
            self._receive_later()

    def _take_in(self, peer: str, header: bytes, frames: list[memoryview]) -> None:
        try:
            message = decode(header)
            if isinstance(message, _HANDSHAKE):
                self._shake_hands(peer, message)
                return
            state = self._peers.get(peer)
            if state is None:
                raise ProtocolError(f"{peer} sent {message.tag!r} before its hello")
            state.received += 1
            self._receive(peer, message, frames)
        except Exception as error:
            # One bad message or handler must not silence the socket: no new edge would come.
            self._on_error(peer, error)
            self._after_error(peer)

    def _shake_hands(self, peer: str, message: Message) -> None:
        """Drain and Drained; the two ends add what they say at the beginning."""
        state = self._peers.get(peer)
        if state is None:
            raise ProtocolError(f"{peer} sent {message.tag!r} before its hello")
        if isinstance(message, Drain):
            counts = Drained(sent=state.sent, received=state.received)
            self._transmit(peer, state.prefix, counts)
        elif isinstance(message, Drained) and state.drained and not state.drained.done():
            state.drained.set_result(_Counts(message, state.received))

    def _after_error(self, peer: str) -> None:
        """For a router, which may have to tell a stranger."""

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

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers that have said Hello and were not forgotten."""
        return tuple(self._peers)

    def _receive_one(self) -> tuple[str, bytes, list[memoryview]]:
        # A router's socket puts the identity in front, so a header always follows.
        identity = self._socket.recv(_NOW)
        return identity.decode("utf-8", "replace"), *self._receive_header()

    def _shake_hands(self, peer: str, message: Message) -> None:
        if not isinstance(message, Hello):
            super()._shake_hands(peer, message)
            return
        state = self._peers[peer] = _Peer(prefix=(peer.encode(),), received=1)
        self._transmit(peer, state.prefix, Welcome())
        state.sent += 1
        self._receive(peer, message, [])

    def _after_error(self, peer: str) -> None:
        """Tell a peer whose Hello was not understood, so that it need not wait any longer."""
        if peer in self._peers or self._closed:
            return
        reason = f"the hello of {peer} was not understood: install the same version on both sides"
        with contextlib.suppress(PeerGone):
            self._transmit(peer, (peer.encode(),), Refused(reason=reason))


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
        self._peers[peer] = _Peer()
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

    def _receive_one(self) -> tuple[str, bytes, list[memoryview]]:
        return self.peer, *self._receive_header()

    def _shake_hands(self, peer: str, message: Message) -> None:
        if isinstance(message, Refused):
            _fail(self._welcome, ProtocolError(message.reason))
        elif isinstance(message, Welcome):
            self._peers[peer].received += 1
            if not self._welcome.done():
                self._welcome.set_result(None)
        else:
            super()._shake_hands(peer, message)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """End `future` with `error`; whoever waited for it may have given up, so nobody must look."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def _contiguous(frame: Frame) -> memoryview:
    view = memoryview(frame)
    if not view.c_contiguous:
        raise ValueError(f"a frame of shape {view.shape} is not contiguous; send a copy of it")
    return view
