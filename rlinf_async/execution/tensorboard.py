"""Scalars in TensorBoard's event format, written by hand.

The usual writers cost a second of CPU time to import (tensorboardX loads torch), in the process
that must not be busy; the format needs a few bytes of protobuf and a checksum. Sources:
TensorFlow's event.proto and summary.proto, and record_writer.cc for the framing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path


class EventFile:
    """Appends scalars to a new `events.out.tfevents.*` file; every event is one write(2)."""

    def __init__(self, folder: Path) -> None:
        now = datetime.now().timestamp()
        self.path = folder / f"events.out.tfevents.{int(now)}.rlinf"
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._write(now, _text(3, b"brain.Event:2"))

    def add(self, scalars: Mapping[str, float], *, step: int) -> None:
        """Write one value of each name at `step` >= 0."""
        values = b"".join(_text(1, _value(name, value)) for name, value in scalars.items())
        body = b"\x10" + _varint(step) + _text(5, values)
        self._write(datetime.now().timestamp(), body)

    def close(self) -> None:
        self._file.close()

    def _write(self, wall_time_s: float, body: bytes) -> None:
        self._file.write(frame(b"\x09" + struct.pack("<d", wall_time_s) + body))


def frame(record: bytes) -> bytes:
    """A record with its length before it, and a checksum after each of the two."""
    length = struct.pack("<Q", len(record))
    return length + _masked(length) + record + _masked(record)


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _table()


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) + 0xA282EAD8
    return struct.pack("<I", rotated & 0xFFFFFFFF)


def _value(name: str, value: float) -> bytes:
    return _text(1, name.encode()) + b"\x15" + struct.pack("<f", value)


def _text(field: int, content: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
