"""Gymnasium's action spaces as ours, with the way back to what an environment takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rlinf_async.envs.actions import ActionLeaf, Nest, leaves_of
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionPart, ActionSpec

MOST_CHOICES = 65_536
"""Choices of one component above which a space is refused: each of them is an output."""

_SUPPORTED = (
    "Box of floats with finite bounds, Box of integers, Discrete, MultiDiscrete, MultiBinary, and "
    "Dict and Tuple of these"
)
_TRANSFORM = "change it with gymnasium.wrappers.TransformAction inside a factory function"
_BOUND = (
    "in a factory function, wrap it in gymnasium.wrappers.TransformAction with a bounded Box as "
    "action_space; leave out ClipAction, which declares infinite bounds (actions are clipped to "
    "the Box before each step)"
)


def action_nest(space: Any, *, who: str) -> Nest:
    """The leaves of an action space, nested as it is.

    Raises:
        BadInput: a part is not supported; it names the part, and how to get there.
    """
    nest = _walk(space, (), who)
    if not leaves_of(nest):
        raise BadInput(who, "its action space is empty", got=space)
    return nest


def action_spec(nest: Nest, *, who: str) -> ActionSpec:
    """The action of one slot; that of a Dict or Tuple is mixed, its names joined by '/'."""
    if isinstance(nest, ActionLeaf):
        return nest.spec
    parts = tuple(
        ActionPart(name="/".join(map(str, leaf.path)), spec=leaf.spec) for leaf in leaves_of(nest)
    )
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise BadInput(who, "two parts of its action have the same flattened name", got=names)
    return ActionSpec(
        kind="mixed",
        shape=(sum(part.size for part in parts),),
        dtype="float32",
        parts=parts,
    )


def _walk(space: Any, path: tuple[Any, ...], who: str) -> Nest:
    if isinstance(space, spaces.Dict):
        return {key: _walk(inner, (*path, key), who) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_walk(inner, (*path, i), who) for i, inner in enumerate(space.spaces))
    return ActionLeaf(_leaf(space, path, who), path)


def _leaf(space: Any, path: tuple[Any, ...], who: str) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        _check_choices(np.array([space.n]), space, path, who)
        return ActionSpec(
            kind="discrete",
            shape=(),
            dtype=np.dtype(space.dtype).name,
            count=int(space.n),
            start=int(space.start),
        )
    if isinstance(space, spaces.MultiDiscrete):
        return _choices(space, space.nvec, space.start, path, who)
    if isinstance(space, spaces.MultiBinary):
        return _bits(space)
    if isinstance(space, spaces.Box):
        kind = np.dtype(space.dtype).kind
        if kind == "f":
            return _continuous(space, path, who)
        if kind == "b" and not space.low.any() and space.high.all():
            return _bits(space)
        if kind in "iu":
            # Python's integers: the range of an int64 is no int64.
            wide = np.asarray(space.high.astype(object) - space.low.astype(object) + 1)
            return _choices(space, wide, space.low, path, who)
    raise BadInput(
        who,
        f"{_name(path)} is not supported",
        expected=_SUPPORTED,
        got=space,
        fix=_TRANSFORM,
    )


def _choices(space: Any, counts: Any, starts: Any, path: tuple[Any, ...], who: str) -> ActionSpec:
    _check_choices(counts, space, path, who)
    return ActionSpec(
        kind="multi_discrete",
        shape=tuple(map(int, space.shape)),
        dtype=np.dtype(space.dtype).name,
        counts=tuple(map(int, counts.flat)),
        starts=tuple(map(int, starts.flat)),
    )


def _check_choices(counts: Any, space: Any, path: tuple[Any, ...], who: str) -> None:
    if counts.size and counts.max() > MOST_CHOICES:
        raise BadInput(
            who,
            f"{_name(path)} has too many choices",
            expected=f"at most {MOST_CHOICES:,} for each component",
            got=space,
            fix=f"{_TRANSFORM}, to a Box of floats or to fewer choices",
        )


def _bits(space: Any) -> ActionSpec:
    return ActionSpec(
        kind="multi_binary",
        shape=tuple(map(int, space.shape)),
        dtype=np.dtype(space.dtype).name,
    )


def _continuous(space: Any, path: tuple[Any, ...], who: str) -> ActionSpec:
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise BadInput(
            who,
            f"{_name(path)} has no finite bounds",
            expected=_SUPPORTED,
            got=space,
            fix=_BOUND,
        )
    return ActionSpec(
        kind="continuous",
        shape=tuple(map(int, space.shape)),
        dtype=np.dtype(space.dtype).name,
        low=tuple(float(bound) for bound in space.low.flat),
        high=tuple(float(bound) for bound in space.high.flat),
    )


def _name(path: tuple[Any, ...]) -> str:
    return f"its action space {'/'.join(map(str, path))!r}" if path else "its action space"
