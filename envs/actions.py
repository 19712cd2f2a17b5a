"""From stored actions to those that an environment takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.execution.spaces import ActionSpec

# axes: n slots of the cell, A action, K entries of a mixed action


class ActionDecoder:
    """Turns actions of any kind but mixed, as stored in a row, into the environment's own.

    Continuous actions are cast to the environment's dtype and then clipped, so that they lie within
    its bounds after rounding too. Choices are numbered from the space's start. Mixed actions, whose
    parts have dtypes of their own, are for `NestedActions`.
    """

    def __init__(self, spec: ActionSpec, slots: int) -> None:
        self._shape = (slots, *spec.shape)
        self._dtype = np.dtype(spec.dtype)
        self._start: npt.NDArray[np.int64] | int | None = None
        if spec.kind == "continuous":
            self._low = np.array(spec.low, self._dtype).reshape(spec.shape)
            self._high = np.array(spec.high, self._dtype).reshape(spec.shape)
        elif spec.kind == "multi_discrete":
            self._start = np.array(spec.starts, np.int64).reshape(spec.shape)
        elif spec.kind in ("discrete", "multi_binary"):
            self._start = spec.start
        else:
            raise ValueError(f"actions of kind {spec.kind!r} have no single dtype")

    def __call__(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Row actions [n, *A] to a new array [n, *A] in the environment's dtype."""
        if actions.shape != self._shape:
            raise ValueError(f"actions: expected shape {self._shape}, got {actions.shape}")
        if self._start is not None:
            # Within a mixed action choices are floats, exact ones.
            return (actions.astype(np.int64) + self._start).astype(self._dtype)
        decoded: npt.NDArray[Any] = np.maximum(actions.astype(self._dtype, copy=False), self._low)
        np.minimum(decoded, self._high, out=decoded)
        return decoded


@dataclass(frozen=True, slots=True)
class ActionLeaf:
    """One array, or one choice, of an environment's possibly nested action."""

    spec: ActionSpec
    path: tuple[Any, ...] = ()
    """Keys and positions that lead to it."""

    @property
    def scalar(self) -> bool:
        """Whether the environment takes a number, not an array."""
        return self.spec.kind == "discrete"


Nest = ActionLeaf | dict[Any, "Nest"] | tuple["Nest", ...]
"""How an environment's action is built: dictionaries and tuples with leaves at their ends."""


class NestedActions:
    """Turns row actions of every kind into what each of `slots` environments takes.

    Plain actions are arrays (numbers, for single choices); mixed ones are put together into the
    dictionaries and tuples of `nest`.
    """

    def __init__(self, spec: ActionSpec, nest: Nest, slots: int) -> None:
        self._shape, self._nest = (slots, *spec.shape), nest
        self._columns: dict[tuple[Any, ...], tuple[slice, tuple[int, ...]]] = {}
        leaves = leaves_of(nest)
        self._decoders = {leaf.path: ActionDecoder(leaf.spec, slots) for leaf in leaves}
        start = 0
        for part, leaf in zip(spec.parts, leaves, strict=spec.kind == "mixed"):
            columns = slice(start, start + part.size)
            self._columns[leaf.path] = columns, (slots, *leaf.spec.shape)
            start = columns.stop

    def each(self, actions: npt.NDArray[Any]) -> Callable[[int], Any]:
        """The action of a slot, by its number, from row actions [n, *A]."""
        decoded, nest = self._decode(actions), self._nest
        if isinstance(nest, ActionLeaf):
            rows = decoded[nest.path]
            return rows.__getitem__ if nest.scalar else lambda slot: rows[slot, ...]
        return lambda slot: _build(
            nest, lambda leaf: decoded[leaf.path][slot if leaf.scalar else (slot, ...)]
        )

    def together(self, actions: npt.NDArray[Any]) -> Any:
        """The actions of all slots at once, arrays [n, ...] in the same dictionaries and tuples."""
        decoded = self._decode(actions)
        return _build(self._nest, lambda leaf: decoded[leaf.path])

    def _decode(self, actions: npt.NDArray[Any]) -> Mapping[tuple[Any, ...], npt.NDArray[Any]]:
        if actions.shape != self._shape:
            raise ValueError(f"actions: expected shape {self._shape}, got {actions.shape}")
        if not self._columns:
            return {path: decode(actions) for path, decode in self._decoders.items()}
        return {
            path: self._decoders[path](actions[:, columns].reshape(shape))
            for path, (columns, shape) in self._columns.items()
        }


def leaves_of(nest: Nest) -> list[ActionLeaf]:
    """The leaves of a nest, in the order of a row."""
    if isinstance(nest, ActionLeaf):
        return [nest]
    inner = nest.values() if isinstance(nest, dict) else nest
    return [leaf for each in inner for leaf in leaves_of(each)]


def _build(nest: Nest, value: Callable[[ActionLeaf], Any]) -> Any:
    if isinstance(nest, ActionLeaf):
        return value(nest)
    if isinstance(nest, dict):
        return {key: _build(inner, value) for key, inner in nest.items()}
    return tuple(_build(inner, value) for inner in nest)
