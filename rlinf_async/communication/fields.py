"""What a row holds and where each field lies in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_async.errors import BadInput

ALIGNMENT = 64
"""Every field begins on a cache line of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One array of a row: its name, full shape, and numpy dtype name (bool, int or float)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biuf":
            raise BadInput(
                f"field {self.name!r}",
                "a row cannot hold this dtype",
                expected="bool, an integer or a float type",
                got=self.dtype,
            )
        if any(size < 0 for size in self.shape):
            raise BadInput(f"field {self.name!r}", "negative size", got=self.shape)

    @property
    def byte_count(self) -> int:
        """Bytes of the array itself, without padding."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Layout:
    """Offsets of `fields` within one row, each 64-byte aligned, in the order given."""

    def __init__(self, fields: Sequence[Field]) -> None:
        names = [field.name for field in fields]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated or not fields:
            raise BadInput("row layout", "field names must be unique, at least one", got=names)
        self.fields = tuple(fields)
        self.offsets: dict[str, int] = {}
        end = 0
        for field in self.fields:
            self.offsets[field.name] = end
            end = aligned(end + field.byte_count)
        self.row_bytes = max(end, ALIGNMENT)


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT
