"""What flows between environments and policies, described without any simulator's types."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """One named observation array of one slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The dtype in a segment: float32 for every float input, else the environment's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The action of one slot.

    continuous: `shape` components within [low, high] (flat tuples, one bound per component).
    discrete:   `count` choices; the environment's own numbering begins at `start`.
    """

    kind: Literal["continuous", "discrete"]
    shape: tuple[int, ...]
    dtype: str
    """The environment's own dtype; actions are cast to it just before a step."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    count: int = 0
    start: int = 0

    @property
    def row_dtype(self) -> str:
        """The dtype of stored actions: raw samples in float32, choices in int64 from 0."""
        return "float32" if self.kind == "continuous" else "int64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """Flat named observations and the action of one environment."""

    observation: tuple[ArraySpec, ...]
    action: ActionSpec

    def to_json(self) -> dict[str, Any]:
        """A dictionary that orjson can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        action = data["action"]
        return cls(
            observation=tuple(
                ArraySpec(name=o["name"], shape=tuple(o["shape"]), dtype=o["dtype"])
                for o in data["observation"]
            ),
            action=ActionSpec(
                kind=action["kind"],
                shape=tuple(action["shape"]),
                dtype=action["dtype"],
                low=tuple(action["low"]),
                high=tuple(action["high"]),
                count=action["count"],
                start=action["start"],
            ),
        )
