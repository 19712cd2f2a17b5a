"""What flows between environments and policies, described without any simulator's types."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """One named observation array of one slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The dtype in a segment: float32 for every float input, else the environment's own."""
    counts: tuple[int, ...] = ()
    """Values that each entry of an integer observation can take (flat), where that is known."""
    starts: tuple[int, ...] = ()
    """The smallest of them (flat); empty stands for 0 everywhere."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**values)


ActionKind = Literal["continuous", "discrete", "multi_discrete", "multi_binary", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The action of one slot.

    continuous:     `shape` components within [low, high] (flat tuples, one bound per component).
    discrete:       `count` choices; the environment's own numbering begins at `start`.
    multi_discrete: `shape` choices, each of `counts` (flat) from `starts` (flat).
    multi_binary:   `shape` bits.
    mixed:          named `parts` of the kinds above; a row holds them flattened, one behind the
                    other, in shape [K].

    With chunks of C actions (`Spaces.chunk`) the first axis of `shape` is C: see `chunked`.
    """

    kind: ActionKind
    shape: tuple[int, ...]
    dtype: str
    """The environment's own dtype; actions are cast to it just before a step."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    count: int = 0
    start: int = 0
    counts: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    parts: tuple[ActionPart, ...] = ()

    @property
    def row_dtype(self) -> str:
        """The dtype of stored actions: raw samples in float32, choices in int64 from 0.

        Mixed actions are float32 throughout: choices below 2**24 are exact in it.
        """
        return "float32" if self.kind in ("continuous", "mixed") else "int64"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        parts = tuple(
            ActionPart(name=part["name"], spec=ActionSpec.from_json(part["spec"]))
            for part in values.pop("parts", ())
        )
        return cls(**values, parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPart:
    """One named action among several; `name` is the flattened path within the action space."""

    name: str
    spec: ActionSpec

    @property
    def size(self) -> int:
        """Entries of the row that it takes."""
        return math.prod(self.spec.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """Flat named observations and the action of one environment."""

    observation: tuple[ArraySpec, ...]
    action: ActionSpec
    chunk: int = 1
    """Simulator steps of one action, C; with C > 1 the action's first axis is C."""

    def to_json(self) -> dict[str, Any]:
        """A dictionary that orjson can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(
            observation=tuple(ArraySpec.from_json(o) for o in data["observation"]),
            action=ActionSpec.from_json(data["action"]),
            chunk=data.get("chunk", 1),
        )


def chunked(spec: ActionSpec, chunk: int) -> ActionSpec:
    """The action of `chunk` simulator steps, of which each takes one of `spec`.

    `shape` has a first axis of C = `chunk`, and bounds, counts and starts are repeated C times:
    discrete actions become multi_discrete of shape [C]. A mixed action becomes [C, K] and keeps its
    `parts`, which remain those of one step, so that `row[..., c, :]` holds all parts of step c, one
    behind the other. With C = 1 the action has no axis of chunks.
    """
    if chunk < 1:
        raise ValueError(f"a chunk has at least one action, got {chunk}")
    if chunk == 1:
        return spec
    if spec.kind == "discrete":
        return ActionSpec(
            kind="multi_discrete",
            shape=(chunk,),
            dtype=spec.dtype,
            counts=(spec.count,) * chunk,
            starts=(spec.start,) * chunk,
        )
    return replace(
        spec,
        shape=(chunk, *spec.shape),
        low=spec.low * chunk,
        high=spec.high * chunk,
        counts=spec.counts * chunk,
        starts=spec.starts * chunk,
    )
