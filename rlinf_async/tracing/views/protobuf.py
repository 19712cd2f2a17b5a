"""The few shapes of protobuf's wire format that a trace file needs.

https://protobuf.dev/programming-guides/encoding: a field is a key, its number and type in one
varint, and a value: a varint, eight bytes, or bytes behind their length.
"""

from __future__ import annotations

import struct

_DOUBLE = struct.Struct("<d")
_FIXED = struct.Struct("<Q")


def varint(value: int) -> bytes:
    """A number from 0 on, seven bits a byte, the low ones first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """A varint field: int32, int64, uint64, enum (not negative), bool."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    """A field of eight bytes: double."""
    return varint(field << 3 | 1) + _DOUBLE.pack(value)


def fixed(field: int, value: int) -> bytes:
    """A field of eight bytes: fixed64."""
    return varint(field << 3 | 1) + _FIXED.pack(value)


def text(field: int, value: str | bytes) -> bytes:
    """A field of bytes: string, or an encoded message."""
    content = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(content)) + content
