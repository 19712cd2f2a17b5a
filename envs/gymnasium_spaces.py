"""Gymnasium's observation spaces as ours: flat named arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict and Tuple of these"
_MOST_COUNTED = 4096
"""Entries of one observation whose numbers of values are declared one by one."""
_TOLERANCE = 1e-4
"""How far beyond a float's bound, relative to its size, rounding may carry it."""

Limits = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class Unfit(Exception):
    """A value that its declared space forbids; the caller knows whose it is."""

    def __init__(self, key: str, expected: object, got: object) -> None:
        self.key, self.expected, self.got = key, expected, got
        super().__init__(f"{key}: expected {expected}; got {got}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a possibly nested observation."""

    spec: ArraySpec
    path: tuple[Any, ...]
    """Keys and positions that lead to it."""
    declared: np.dtype[Any]
    limits: Limits | None = None
    """Smallest and largest value, of the whole or of each entry; None where the dtype is all."""
    characters: frozenset[str] | None = None
    """Those that a text may have; None for arrays."""

    @property
    def key(self) -> str:
        """The name as errors give it."""
        return f"observation {self.spec.name!r}"

    def read(self, observation: Any) -> npt.NDArray[Any]:
        """The leaf of `observation`, which may be the environment's own memory.

        Checks shape and kind, so that storing it loses nothing but the width of a float.
        """
        value = self._follow(observation) if self.path else observation
        if self.characters is not None:
            return self._bytes(value, self.characters)
        if not isinstance(value, np.ndarray):
            value = self._as_array(value)
        if value.shape != self.spec.shape:
            raise Unfit(self.key, self._expected(), describe(value))
        if value.dtype is not self.declared and value.dtype != self.declared:
            self._check_kind(value)
        array: npt.NDArray[Any] = value
        return array

    def read_all(self, observations: Any, out: npt.NDArray[Any]) -> None:
        """Copy the leaf of batched observations, of n slots, into `out` [n, *shape]."""
        value = self._follow(observations)
        if self.characters is not None:
            if not isinstance(value, tuple | list) or len(value) != len(out):
                raise Unfit(self.key, f"{len(out)} texts", describe(value))
            for slot, text in enumerate(value):
                out[slot] = self._bytes(text, self.characters)
            return
        array = value if isinstance(value, np.ndarray) else self._as_array(value)
        if array.shape != out.shape:
            raise Unfit(self.key, f"{self.declared} of shape {out.shape}", describe(array))
        if array.dtype != self.declared:
            self._check_kind(array)
        out[...] = array

    def check_limits(self, value: npt.NDArray[Any]) -> None:
        """Compare one slot's value with the declared bounds; Unfit tells by how much it fails."""
        if self.limits is None:
            return
        low, high = self.limits
        if self.declared.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):
                low = low - _TOLERANCE * np.maximum(1.0, np.abs(low))
                high = high + _TOLERANCE * np.maximum(1.0, np.abs(high))
        outside = (value < low) | (value > high)
        if outside.any():
            where = tuple(int(i) for i in np.argwhere(outside)[0])
            raise Unfit(self.key, self._range(where), f"{value[where]}{_at(where)}")

    def _follow(self, observation: Any) -> Any:
        value = observation
        for step in self.path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                raise Unfit(self.key, f"a value under {step!r}", describe(value)) from None
        return value

    def _check_kind(self, value: npt.NDArray[Any]) -> None:
        known = value.dtype.kind in "biuf"
        if not known or not np.can_cast(value.dtype, self.declared, "same_kind"):
            raise Unfit(self.key, self._expected(), describe(value))
        if self.declared.kind in "iu" and not np.can_cast(value.dtype, self.declared, "safe"):
            kept = np.iinfo(self.declared)
            if value.size and (int(value.min()) < kept.min or int(value.max()) > kept.max):
                raise Unfit(self.key, self._expected(), f"{value.min()} to {value.max()}")

    def _as_array(self, value: Any) -> npt.NDArray[Any]:
        try:
            array = np.asarray(value)
        except ValueError:
            raise Unfit(self.key, self._expected(), describe(value)) from None
        if array.dtype.kind not in "biuf":
            raise Unfit(self.key, self._expected(), describe(value))
        return array

    def _bytes(self, text: Any, characters: frozenset[str]) -> npt.NDArray[np.uint8]:
        """UTF-8, filled up with zeros."""
        if not isinstance(text, str):
            raise Unfit(self.key, "a text", describe(text))
        strange = set(text) - characters
        if strange:
            raise Unfit(self.key, "characters of its space", f"{''.join(sorted(strange))!r}")
        encoded, room = text.encode(), self.spec.shape[0]
        if len(encoded) > room:
            raise Unfit(self.key, f"at most {room} bytes of UTF-8", f"{len(encoded)}: {text!r}")
        return np.frombuffer(encoded.ljust(room, b"\0"), np.uint8)

    def _expected(self) -> str:
        return f"{self.declared} of shape {self.spec.shape}"

    def _range(self, where: tuple[int, ...]) -> str:
        assert self.limits is not None
        low, high = (np.broadcast_to(each, self.spec.shape)[where] for each in self.limits)
        return f"a value from {low} to {high}, as declared (checks=False allows others)"


def describe(value: Any) -> str:
    """What a value is, for an error: dtype and shape of arrays, keys of mappings, else its type."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, dict):
        return f"keys {sorted(map(str, value))}"
    if isinstance(value, gymnasium.Space):
        return f"the space object {value}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


def observation_leaves(space: Any, *, who: str) -> tuple[Leaf, ...]:
    """The arrays of an observation space, in its own order; nested names are joined by '/'."""
    leaves = tuple(_walk(space, (), who))
    names = [leaf.spec.name for leaf in leaves]
    if not leaves:
        raise BadInput(who, "its observation space is empty", got=space)
    if len(set(names)) < len(names):
        raise BadInput(who, "two observations have the same flattened name", got=names)
    return leaves


def _walk(space: Any, path: tuple[Any, ...], who: str) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _walk(inner, (*path, key), who)
    elif isinstance(space, spaces.Tuple):
        for position, inner in enumerate(space.spaces):
            yield from _walk(inner, (*path, position), who)
    elif isinstance(space, spaces.Discrete):
        yield _choices(space, np.array(space.n), np.array(space.start), path)
    elif isinstance(space, spaces.MultiDiscrete):
        yield _choices(space, space.nvec, space.start, path)
    elif isinstance(space, spaces.MultiBinary):
        two = np.full(space.shape, 2, np.int64)
        yield _choices(space, two, np.zeros_like(two), path)
    elif isinstance(space, spaces.Text):
        yield _text(space, path, who)
    elif isinstance(space, spaces.Box):
        yield Leaf(_spec(space, path), path, np.dtype(space.dtype), _box_limits(space))
    else:
        raise BadInput(
            who,
            f"its observation space {'/'.join(map(str, path))!r} is not supported"
            if path
            else "its observation space is not supported",
            expected=_SUPPORTED,
            got=space,
            fix="change it with gymnasium.wrappers.TransformObservation inside a factory function",
        )


def _choices(space: Any, counts: Any, starts: Any, path: tuple[Any, ...]) -> Leaf:
    first = starts.astype(np.int64)
    limits = _narrowed(first, first + counts.astype(np.int64) - 1)
    if counts.size > _MOST_COUNTED:
        return Leaf(_spec(space, path), path, np.dtype(space.dtype), limits)
    known, begin = tuple(map(int, counts.flat)), tuple(map(int, first.flat))
    spec = _spec(space, path, known, begin if any(begin) else ())
    return Leaf(spec, path, np.dtype(space.dtype), limits)


def _text(space: Any, path: tuple[Any, ...], who: str) -> Leaf:
    if "\0" in space.character_set:
        raise BadInput(who, "a text with NUL characters, which mark where one ends", got=space)
    widest = max((len(each.encode()) for each in space.character_set), default=1)
    name = "/".join(map(str, path)) or "text"
    spec = ArraySpec(name=name, shape=(space.max_length * widest,), dtype="uint8")
    return Leaf(spec, path, np.dtype(np.uint8), characters=space.character_set)


def _spec(
    space: Any,
    path: tuple[Any, ...],
    counts: tuple[int, ...] = (),
    starts: tuple[int, ...] = (),
) -> ArraySpec:
    dtype = np.dtype(space.dtype)
    whole = "image" if dtype == np.uint8 and len(space.shape) == 3 else "state"
    return ArraySpec(
        name="/".join(map(str, path)) or whole,
        shape=tuple(map(int, space.shape)),
        dtype="float32" if dtype.kind == "f" else dtype.name,
        counts=counts,
        starts=starts,
    )


def _box_limits(space: Any) -> Limits | None:
    dtype = np.dtype(space.dtype)
    if dtype.kind == "b":
        full = not space.low.any() and bool(space.high.all())
    elif dtype.kind == "f":
        full = bool(np.isinf(space.low).all() and np.isinf(space.high).all())
    else:
        kept = np.iinfo(dtype)
        full = bool((space.low == kept.min).all() and (space.high == kept.max).all())
    return None if full else _narrowed(space.low, space.high)


def _narrowed(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> Limits:
    """Limits as single numbers where they are the same for all entries: quick to compare with."""
    if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return np.array(low.flat[0]), np.array(high.flat[0])
    return low, high


def _at(where: tuple[int, ...]) -> str:
    return f" at {list(where)}" if where else ""
