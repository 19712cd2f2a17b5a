"""What a script defines before its pipeline runs: described here, built in the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf_async.execution.layout import Cell
from rlinf_async.execution.spaces import Spaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Envs:
    """Environments of one kind, described; they are built in the render workers."""

    env: Any
    """An id, or the description of a factory."""
    name: str
    spaces: Spaces
    cells: tuple[Cell, ...]
    interpreter: str | None = None
    """The Python that their simulator lives in; None: the run's own."""
    drawing: list[dict[str, Any]] | None = None
    """Name, shape and dtype of what a draw worker is told of a slot; None: drawn where stepped."""

    @property
    def count(self) -> int:
        """Slots in all."""
        return sum(cell.slots for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy, described; it is built in the workers that act or learn."""

    factory: dict[str, Any]
    """`references.describe_factory` of the class and its arguments."""
    name: str
    normalize_observations: bool
    memory: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name to shape of what the policy remembers of a slot's episode."""
    squash: bool = False
    """Whether rows hold its continuous actions before a tanh, which the render workers apply."""
