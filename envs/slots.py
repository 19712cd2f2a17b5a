"""What cells of single environments share: present observations, and who is within an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Advancing, begin_next
from rlinf_async.envs.contract import NOTHING_FINISHED, NextSeed, Observation, StepResult
from rlinf_async.execution.spaces import Spaces

# axes: n slots of the cell, A action
Slots = npt.NDArray[np.intp]


class SlotTable:
    """Observation, episode length and liveness of each slot; the memory is the cell's own."""

    def __init__(self, spaces: Spaces, count: int, *, who: str) -> None:
        self._who = who
        self.now: Observation = {
            spec.name: np.zeros((count, *spec.shape), spec.dtype) for spec in spaces.observation
        }
        self.length = np.zeros(count, np.int64)
        """Steps of the present episode, [n]."""
        self.live = np.zeros(count, np.bool_)
        """Slots that are within an episode, [n]; the others are not stepped."""

    def observe(self, slots: Slots | None) -> Observation:
        """Copies of the present observations of `slots` [m, ...] (None: all)."""
        if slots is None:
            return {name: rows.copy() for name, rows in self.now.items()}
        return {name: rows[slots] for name, rows in self.now.items()}

    def chosen(self, slots: Slots | None) -> Slots:
        """The slots to step: `slots`, which must all be live, or all that are."""
        if slots is None:
            chosen = np.flatnonzero(self.live)
            if not chosen.size:
                raise ValueError(f"{self._who}: no slot is within an episode: begin one first")
            return chosen
        chosen = np.asarray(slots, np.intp)
        if not self.live[chosen].all():
            idle = chosen[~self.live[chosen]].tolist()
            raise ValueError(f"{self._who}: slots {idle} are not within an episode")
        return chosen

    def begun(self, slots: Slots) -> None:
        """An episode has begun in each of `slots`."""
        self.length[slots], self.live[slots] = 0, True


def check_seeds(seeds: Sequence[int], slots: int, who: str) -> None:
    """ValueError unless a reset of all slots was given one seed for each."""
    if len(seeds) != slots:
        raise ValueError(f"{who}: expected {slots} seeds, got {len(seeds)}")


def step_once(
    cell: Advancing, actions: npt.NDArray[Any], next_seed: NextSeed, slots: Slots | None
) -> StepResult:
    """`CellEnvs.step` of a cell that steps, observes and begins."""
    part = cell.advance(actions, slots)
    finished, final = NOTHING_FINISHED, None
    ended = part.terminated | part.truncated
    if np.count_nonzero(ended):
        finished = np.flatnonzero(ended)
        final = cell.observe(finished)
        begin_next(cell, finished, next_seed)
    return StepResult(
        cell.observe(None),
        part.reward,
        part.terminated,
        part.truncated,
        finished,
        final,
        part.success,
    )
