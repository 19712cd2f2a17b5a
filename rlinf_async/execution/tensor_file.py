"""Reading safetensors files with numpy alone, for interpreters that have nothing else.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name to dtype, shape
and the two ends of its bytes), and the bytes of all tensors in C order.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""Names in a header; bfloat16 and smaller floats have no dtype in numpy."""
_PREFIX = 8


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Name to array, each of the reader's own; ValueError says what is wrong with the file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:_PREFIX], "little")
    start = _PREFIX + size
    if len(content) < start:
        raise ValueError(f"{path.name}: the header is cut off")
    header = orjson.loads(content[_PREFIX:start])
    header.pop("__metadata__", None)
    return {
        name: _tensor(memoryview(content)[start:], described, f"{path.name}: {name!r}")
        for name, described in header.items()
    }


def _tensor(content: memoryview, described: dict[str, Any], who: str) -> NDArray[Any]:
    if described["dtype"] not in DTYPES:
        raise ValueError(f"{who} is of dtype {described['dtype']}, which numpy does not have")
    dtype, shape = np.dtype(DTYPES[described["dtype"]]), tuple(described["shape"])
    begin, end = described["data_offsets"]
    if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= len(content):
        raise ValueError(f"{who} lies outside the file or is of another size than it says")
    return np.frombuffer(content[begin:end], dtype).reshape(shape).copy()
