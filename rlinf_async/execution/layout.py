"""How a run's environments are cut into cells, and what one segment's row looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlinf_async.communication.fields import Field
from rlinf_async.execution.spaces import Spaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A fixed range of slots; never changed by a plan."""

    number: int
    first_slot: int
    slots: int


def cut_into_cells(env_count: int, cell_size: int) -> tuple[Cell, ...]:
    """Cells of `cell_size` slots; where it does not divide `env_count`, the last one is smaller."""
    starts = range(0, env_count, cell_size)
    return tuple(
        Cell(number=number, first_slot=start, slots=min(cell_size, env_count - start))
        for number, start in enumerate(starts)
    )


def segment_fields(
    spaces: Spaces,
    *,
    horizon: int,
    slots: int,
    memory: Mapping[str, tuple[int, ...]] | None = None,
    items: bool = False,
) -> list[Field]:
    """The fields of a row for `slots` slots over `horizon` (chunk-)steps.

    `obs/*` and `value` have one entry more than steps: the one after the last step. With chunks of
    C actions there are C rewards to a step and `executed`, the sub-steps that were simulated: an
    end lies on the last of them. `memory`: names and shapes of what a recurrent policy remembers;
    `memory/*` [1, slots, *shape] is what it remembered before the first step. `items`: also `item`,
    the episode of a work list that a slot runs in each step, -1 where it runs none.
    """
    steps, entries = (horizon, slots), (horizon + 1, slots)
    fields = []
    for spec in spaces.observation:
        fields.append(
            Field(name=f"obs/{spec.name}", shape=(*entries, *spec.shape), dtype=spec.dtype)
        )
        fields.append(
            Field(name=f"final/{spec.name}", shape=(*steps, *spec.shape), dtype=spec.dtype)
        )
    for name, shape in (memory or {}).items():
        fields.append(Field(name=f"memory/{name}", shape=(1, slots, *shape), dtype="float32"))
    if items:
        fields.append(Field(name="item", shape=entries, dtype="int64"))
    action = spaces.action
    rewards: tuple[int, ...] = steps
    if spaces.chunk > 1:
        rewards = (*steps, spaces.chunk)
        fields.append(Field(name="executed", shape=steps, dtype="int64"))
    return [
        *fields,
        Field(name="action", shape=(*steps, *action.shape), dtype=action.row_dtype),
        Field(name="logp", shape=steps, dtype="float32"),
        Field(name="value", shape=entries, dtype="float32"),
        Field(name="final_value", shape=steps, dtype="float32"),
        Field(name="reward", shape=rewards, dtype="float64"),
        Field(name="terminated", shape=steps, dtype="bool"),
        Field(name="truncated", shape=steps, dtype="bool"),
        Field(name="version", shape=(horizon,), dtype="int64"),
    ]
