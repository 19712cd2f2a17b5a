"""Steps that processes of one machine take together: a leader, and those who follow it.

For exchanges every few milliseconds in the middle of a call, from the work thread: no event loop
takes part, so that a question and its answer cost tens of microseconds. Messages are JSON; what is
large lies in row pools.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import orjson

from rlinf_async.communication.deadlines import gave_up
from rlinf_async.errors import PeerGone

Message = dict[str, Any]

_LONGEST_BYTES = 1 << 16


class Leader:
    """Waits at `path` for its followers, asks them all at once, and hears their answers.

    Not thread-safe: one thread leads.
    """

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self._followers: dict[int, socket.socket] = {}

    def gather(self, count: int, *, limit_s: float) -> None:
        """Wait until followers 1 to `count` are connected; PeerTimeout after `limit_s`."""
        until_s = time.monotonic() + limit_s
        while missing := [n for n in range(1, count + 1) if n not in self._followers]:
            try:
                self._listener.settimeout(max(1e-3, until_s - time.monotonic()))
                follower, _ = self._listener.accept()
            except TimeoutError:
                raise gave_up(limit_s, f"follower {missing[0]} to come") from None
            number = _receive(follower, "a follower that has just come", limit_s)["number"]
            if (before := self._followers.pop(number, None)) is not None:
                before.close()
            self._followers[number] = follower

    def tell(self, message: Message, *, count: int) -> None:
        """Send `message` to followers 1 to `count`; PeerGone if one is gone."""
        data = orjson.dumps(message)
        for number in range(1, count + 1):
            try:
                self._followers[number].send(data)
            except OSError as cause:
                raise PeerGone(f"follower {number} is gone: {cause.strerror}") from cause

    def hear(self, *, count: int, limit_s: float) -> list[Message]:
        """One message of each of followers 1 to `count`, in this order.

        Raises:
            PeerGone: a follower has ended or given up.
            PeerTimeout: one has not answered within `limit_s` seconds.
        """
        return [
            _receive(self._followers[number], f"follower {number}", limit_s)
            for number in range(1, count + 1)
        ]

    def close(self) -> None:
        """Let the followers go."""
        for end in (self._listener, *self._followers.values()):
            end.close()


class Follower:
    """Connects to the leader at `path` as one of its followers, counted from 1."""

    def __init__(self, path: str, number: int, *, limit_s: float) -> None:
        """Raises PeerGone if nobody leads there within `limit_s` seconds."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(limit_s)
        try:
            self._socket.connect(path)
        except OSError as cause:
            self._socket.close()
            raise PeerGone(f"nobody leads at {path}: {cause.strerror}") from cause
        self.tell({"number": number})

    def tell(self, message: Message) -> None:
        """Send `message` to the leader; PeerGone if it is gone."""
        try:
            self._socket.send(orjson.dumps(message))
        except OSError as cause:
            raise PeerGone(f"the leader is gone: {cause.strerror}") from cause

    def hear(self, *, limit_s: float) -> Message:
        """The leader's next message; PeerGone once it has ended, PeerTimeout after `limit_s`."""
        return _receive(self._socket, "the leader", limit_s)

    def close(self) -> None:
        """Leave; the leader notices."""
        self._socket.close()


def _receive(end: socket.socket, who: str, limit_s: float) -> Message:
    end.settimeout(limit_s)
    try:
        data = end.recv(_LONGEST_BYTES)
    except TimeoutError:
        raise gave_up(limit_s, f"{who} to answer") from None
    except OSError as cause:
        raise PeerGone(f"{who} is gone: {cause.strerror}") from cause
    if not data:
        raise PeerGone(f"{who} has ended")
    message: Message = orjson.loads(data)
    return message
