"""Checkpoint folders: complete or absent, readable without the code that wrote them.

weights.safetensors      every named parameter, float32
statistics.safetensors   running statistics
optimizer.safetensors    state of the optimizer
policy.json              how to build the policy again
manifest.json            configuration, versions, counts, and the order of the parameters
COMPLETE                 written last: the size in bytes of every other file
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rlinf_async.errors import BadInput
from rlinf_async.execution.tensor_file import read_tensors

MARKER = "COMPLETE"
TENSORS = ("weights", "statistics", "optimizer")
DOCUMENTS = ("policy", "manifest")
FILES = (*(f"{name}.safetensors" for name in TENSORS), *(f"{name}.json" for name in DOCUMENTS))

Shapes = Mapping[str, tuple[int, ...]]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What `read_checkpoint` found."""

    parameters: NDArray[np.float32]
    """Flat, in the order of `parameter_shapes`; a fresh array of the reader's own."""
    parameter_shapes: dict[str, tuple[int, ...]]
    statistics: dict[str, NDArray[Any]]
    policy: dict[str, Any]
    manifest: dict[str, Any]
    optimizer: dict[str, NDArray[Any]]


def write_checkpoint(
    folder: Path,
    *,
    parameters: NDArray[np.float32],
    parameter_shapes: Shapes,
    statistics: Arrays,
    policy: Mapping[str, Any],
    manifest: Mapping[str, Any],
    optimizer: Arrays,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint beside `folder`, then put it there in one step.

    parameters: float32 [P], P = sum of the sizes of `parameter_shapes`. `policy` and `manifest`
    must be what orjson can write. `also` writes more files into the folder that it is given. A
    crash at any time leaves the old checkpoint or the new one at `folder`, never a mixture. Raises
    BadInput if something else than a checkpoint is there. Blocks on fsync: from a coroutine use
    `asyncio.to_thread`.
    """
    _check_target(folder)
    tensors = {
        "weights": split_parameters(parameters, parameter_shapes),
        "statistics": statistics,
        "optimizer": optimizer,
    }
    order = [[name, list(shape)] for name, shape in parameter_shapes.items()]
    documents = {"policy": dict(policy), "manifest": {**manifest, "parameter_shapes": order}}
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}.draft-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        if also is not None:
            also(draft)
        _fill(draft, tensors, documents)
        _put(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint; BadInput says what is missing, of the wrong size or unreadable."""
    _check_complete(folder)
    try:
        tensors = {name: read_tensors(folder / f"{name}.safetensors") for name in TENSORS}
        documents = {
            name: orjson.loads((folder / f"{name}.json").read_bytes()) for name in DOCUMENTS
        }
        manifest = documents["manifest"]
        shapes = {name: tuple(shape) for name, shape in manifest.pop("parameter_shapes")}
        parameters = join_parameters(tensors["weights"], shapes)
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadInput(str(folder), f"checkpoint cannot be read: {cause!r}") from cause
    return Checkpoint(
        parameters=parameters,
        parameter_shapes=shapes,
        statistics=tensors["statistics"],
        policy=documents["policy"],
        manifest=manifest,
        optimizer=tensors["optimizer"],
    )


def read_documents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy and the manifest of a complete checkpoint, without its arrays."""
    _check_complete(folder)
    try:
        policy, manifest = (
            orjson.loads((folder / f"{name}.json").read_bytes()) for name in DOCUMENTS
        )
    except (OSError, ValueError) as cause:
        raise BadInput(str(folder), f"checkpoint cannot be read: {cause!r}") from cause
    return policy, manifest


def split_parameters(flat: NDArray[np.float32], shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Views of a flat float32 [P] vector by name; ValueError if P is not what the shapes need."""
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    if flat.shape != (total,) or flat.dtype != np.float32:
        raise ValueError(f"parameters: expected float32 ({total},), got {flat.dtype} {flat.shape}")
    parts, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        parts[name] = flat[start:stop].reshape(shape)
        start = stop
    return parts


def join_parameters(parts: Arrays, shapes: Shapes) -> NDArray[np.float32]:
    """The inverse of `split_parameters`; ValueError names a parameter of another shape."""
    for name, shape in shapes.items():
        if parts[name].shape != shape:
            raise ValueError(f"parameter {name!r}: expected {shape}, got {parts[name].shape}")
    flat = [np.asarray(parts[name], dtype=np.float32).reshape(-1) for name in shapes]
    return np.concatenate(flat) if flat else np.zeros(0, dtype=np.float32)


def _fill(draft: Path, tensors: Mapping[str, Arrays], documents: Mapping[str, Any]) -> None:
    from safetensors.numpy import save

    for name, arrays in tensors.items():
        # order="C" and not ascontiguousarray, which would turn a scalar into a vector.
        plain = {key: np.array(array, order="C") for key, array in arrays.items()}
        _write(draft / f"{name}.safetensors", save(plain))
    for name, document in documents.items():
        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
        _write(draft / f"{name}.json", orjson.dumps(document, option=options) + b"\n")
    sizes = {name: (draft / name).stat().st_size for name in FILES}
    # The marker vouches for the others, so they must be on disk before it.
    _sync(draft)
    _write(draft / MARKER, orjson.dumps(sizes))
    _sync(draft)


def _put(draft: Path, folder: Path) -> None:
    if folder.exists() and not _exchange(draft, folder):
        # No atomic exchange on this file system: the old one is out of the way for two renames.
        aside = folder.parent / f".{folder.name}.old-{os.getpid()}"
        os.rename(folder, aside)
        os.rename(draft, folder)
        shutil.rmtree(aside)
    elif draft.exists() and not folder.exists():
        os.rename(draft, folder)
    _sync(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders atomically (renameat2); False where kernel or file system cannot."""
    exchange, here = 2, -100  # RENAME_EXCHANGE, AT_FDCWD
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_target(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise BadInput(str(folder), "is there and is no folder", expected="a checkpoint to replace")
    entries = {entry.name for entry in folder.iterdir()}
    if entries and not (MARKER in entries and entries <= {*FILES, MARKER}):
        raise BadInput(
            str(folder),
            "holds other files than a checkpoint's",
            expected="a new folder, or a complete checkpoint to replace",
            got=", ".join(sorted(entries)[:5]),
        )


def _check_complete(folder: Path) -> None:
    if not folder.is_dir():
        near = ""
        if folder.parent.is_dir():
            near = ", ".join(sorted(p.parent.name for p in folder.parent.glob(f"*/{MARKER}"))[:5])
        fix = f"beside it: {near}" if near else ""
        raise BadInput(str(folder), "there is no such checkpoint folder", fix=fix)
    missing = [name for name in (*FILES, MARKER) if not (folder / name).is_file()]
    if missing:
        raise BadInput(
            str(folder),
            f"checkpoint is incomplete: {', '.join(missing)} missing",
            fix="use an earlier checkpoint; this one was cut off while it was written or copied",
        )
    try:
        sizes = orjson.loads((folder / MARKER).read_bytes())
    except orjson.JSONDecodeError as cause:
        raise BadInput(str(folder), f"checkpoint is incomplete: {MARKER} is damaged") from cause
    for name in FILES:
        size = (folder / name).stat().st_size
        if size != sizes.get(name):
            raise BadInput(
                str(folder),
                f"checkpoint is incomplete: {name} was changed or cut off",
                expected=f"{sizes.get(name)} bytes",
                got=f"{size} bytes",
            )
