"""The conversation between a run and its viewers, over a socket in the run's private folder.

Each packet is one orjson document with the key `kind`; a `process` document comes with a read-only
descriptor of that process's memory (`tracing.ring`), so that the run itself sends no records at
all. A viewer answers every packet with one byte; it may owe `CREDITS` answers, what would come
after that is dropped and counted. There is nothing else that a viewer can say.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import orjson

VERSION = 1
SOCKET = "trace"
"""Name of the socket in a run's private folder."""
CARD = "run.json"
"""Name of the file beside it that says whose run it is."""
CREDITS = 16
PACKET_BYTES = 1 << 17
ANSWER = b"\x06"


def listen(folder: Path) -> socket.socket:
    """The run's end."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    server.bind(str(folder / SOCKET))
    os.chmod(folder / SOCKET, 0o600)
    server.listen(16)
    server.setblocking(False)
    return server


def is_owner(viewer: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    credentials = viewer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little") == os.getuid()


def send(viewer: socket.socket, document: dict[str, Any], descriptor: int | None = None) -> None:
    """Send one packet, at once or not at all.

    Raises:
        BlockingIOError: it does not fit now.
        OSError: the viewer is gone, or the packet is too long.
    """
    text = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    descriptors = [] if descriptor is None else [descriptor]
    socket.send_fds(viewer, [text], descriptors, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(viewer: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """The next packet and the descriptor that came with it; None when the run has ended."""
    text, descriptors, _, _ = socket.recv_fds(viewer, PACKET_BYTES, 1)
    if not text:
        return None
    viewer.send(ANSWER, socket.MSG_NOSIGNAL)
    return orjson.loads(text), descriptors[0] if descriptors else None


def history_row(status: dict[str, Any]) -> list[float]:
    """The few numbers of a status whose course matters.

    Time in ns, iteration, environment steps, loop lag in ms, resident bytes of the hosts, and the
    fill of the fullest stream in [0, 1].
    """
    now = status["status"]
    fills = (stream["fill"] / stream["capacity"] for stream in status["streams"])
    return [
        status["at_ns"],
        now["iteration"],
        now["env_steps"],
        now["loop_lag_ms"],
        sum(host.get("rss_bytes", 0) for host in status["hosts"]),
        max(fills, default=0.0),
    ]
