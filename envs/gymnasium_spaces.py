"""Gymnasium's spaces as ours: flat named observations, and the action of one environment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, ArraySpec

_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
_ACTIONS = "Box of floats with finite bounds, or Discrete"


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
    choices: range | None = None
    """The values that a Discrete space allows."""

    def read(self, observation: Any) -> npt.NDArray[Any]:
        """The leaf of `observation`, which may be the environment's own memory; checks shape."""
        value = observation
        for step in self.path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                raise Unfit(self._key(), f"a value under {step!r}", describe(value)) from None
        if not isinstance(value, np.ndarray):
            value = self._as_array(value)
        if value.shape != self.spec.shape:
            raise Unfit(self._key(), self._expected(), describe(value))
        array: npt.NDArray[Any] = value
        return array

    def check(self, observation: Any) -> None:
        """Compare kind, shape and dtype with the declared space; Unfit names what differs.

        Floats of another width pass, since they are stored as float32 in any case.
        """
        value = self.read(observation)
        known = value.dtype.kind in "biuf"
        if not known or not np.can_cast(value.dtype, self.declared, "same_kind"):
            raise Unfit(self._key(), self._expected(), describe(value))
        if self.choices is not None and int(value) not in self.choices:
            raise Unfit(self._key(), f"a value in {self.choices}", int(value))

    def _as_array(self, value: Any) -> npt.NDArray[Any]:
        try:
            array = np.asarray(value)
        except ValueError:
            raise Unfit(self._key(), self._expected(), describe(value)) from None
        if array.dtype.kind not in "biuf":
            raise Unfit(self._key(), self._expected(), describe(value))
        return array

    def _key(self) -> str:
        return f"observation {self.spec.name!r}"

    def _expected(self) -> str:
        return f"{self.declared} of shape {self.spec.shape}"


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
    elif isinstance(space, spaces.Box):
        yield _leaf(space.shape, np.dtype(space.dtype), path)
    elif isinstance(space, spaces.MultiBinary):
        bits = (2,) * math.prod(space.shape)
        yield _leaf(space.shape, np.dtype(space.dtype), path, counts=bits)
    elif isinstance(space, spaces.MultiDiscrete):
        counts, starts = (tuple(each.ravel().tolist()) for each in (space.nvec, space.start))
        yield _leaf(space.shape, np.dtype(space.dtype), path, counts=counts, starts=starts)
    elif isinstance(space, spaces.Discrete):
        choices = range(int(space.start), int(space.start) + int(space.n))
        yield _leaf((), np.dtype(np.int64), path, choices)
    else:
        raise BadInput(
            who, "its observation space is not supported", expected=_OBSERVATIONS, got=space
        )


def _leaf(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    path: tuple[Any, ...],
    choices: range | None = None,
    *,
    counts: tuple[int, ...] = (),
    starts: tuple[int, ...] = (),
) -> Leaf:
    if choices is not None:
        counts, starts = (len(choices),), (choices.start,)
    whole = "image" if dtype == np.uint8 and len(shape) == 3 else "state"
    spec = ArraySpec(
        name="/".join(map(str, path)) or whole,
        shape=tuple(map(int, shape)),
        dtype="float32" if dtype.kind == "f" else dtype.name,
        counts=counts,
        starts=starts,
    )
    return Leaf(spec, path, dtype, choices)


def action_spec(space: Any, *, who: str) -> ActionSpec:
    """The action of an environment; BadInput names what is supported and how to get there."""
    if isinstance(space, spaces.Discrete):
        return ActionSpec(
            kind="discrete",
            shape=(),
            dtype=np.dtype(space.dtype).name,
            count=int(space.n),
            start=int(space.start),
        )
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f":
        raise BadInput(
            who,
            "its action space is not supported",
            expected=_ACTIONS,
            got=space,
            fix="change it with gymnasium.wrappers.TransformAction inside a factory function",
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise BadInput(
            who,
            "its action space has no finite bounds",
            expected=_ACTIONS,
            got=space,
            fix=(
                "in a factory function, wrap it in gymnasium.wrappers.TransformAction with a "
                "bounded Box as action_space; leave out ClipAction, which declares infinite bounds "
                "(actions are clipped to the Box before each step)"
            ),
        )
    return ActionSpec(
        kind="continuous",
        shape=tuple(map(int, space.shape)),
        dtype=np.dtype(space.dtype).name,
        low=tuple(float(bound) for bound in space.low.flat),
        high=tuple(float(bound) for bound in space.high.flat),
    )
