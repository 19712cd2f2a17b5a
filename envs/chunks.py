"""Chunked steps of any cell: C simulator steps, stopping where an episode ends, observed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import (
    NOTHING_FINISHED,
    ChunkResult,
    NextSeed,
    Observation,
)

# axes: n slots of the cell, A action, C sub-steps of a chunk, m slots asked for
Slots = npt.NDArray[np.intp]


@dataclass(slots=True)
class Substep:
    """What one simulator step earned, each [n]; slots that were not stepped have 0 and no end."""

    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    success: npt.NDArray[np.bool_] | None = None


class Advancing(Protocol):
    """What a cell must offer so that chunks can be made of it."""

    @property
    def slots(self) -> int:
        """Slots in all, n."""
        ...

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """Step `slots` (None: all) with rows of `actions` [n, *A]; observe and begin nothing."""
        ...

    def observe(self, slots: Slots | None) -> Observation:
        """The present observations of `slots` [m, ...] (None: all) in arrays of the caller's."""
        ...

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        ...


def chunk_step(
    cell: Advancing,
    actions: npt.NDArray[Any],
    next_seed: NextSeed,
    slots: Slots | None = None,
) -> ChunkResult:
    """`CellEnvs.chunk_step` of `cell`; new episodes begin after the chunk's last sub-step."""
    count, length = actions.shape[:2]
    running = np.arange(count) if slots is None else np.asarray(slots, np.intp)
    result = _nothing_done(count, length)
    lasts: dict[str, npt.NDArray[Any]] = {}
    for c in range(length):
        if not running.size:
            break
        part = cell.advance(actions[:, c], None if running.size == cell.slots else running)
        ended = _note(result, part, running, c)
        if np.count_nonzero(ended):
            _keep(lasts, cell.observe(np.flatnonzero(ended)), ended)
            running = running[~ended[running]]
    result.finished = np.flatnonzero(result.terminated | result.truncated)
    if result.finished.size:
        result.final_observation = {name: rows[result.finished] for name, rows in lasts.items()}
        begin_next(cell, result.finished, next_seed)
    result.observation = cell.observe(None)
    return result


def begin_next(cell: Advancing, finished: Slots, next_seed: NextSeed) -> Slots:
    """Ask for the seeds of `finished` in order, and begin what goes on; returns those slots."""
    begun, seeds = next_seeds(finished, next_seed)
    if begun.size:
        cell.begin(begun, seeds)
    return begun


def next_seeds(finished: Slots, next_seed: NextSeed) -> tuple[Slots, list[int]]:
    """Ask for the seed of each of `finished` in order; those slots that get one, and the seeds."""
    seeds = {slot: next_seed(slot) for slot in finished.tolist()}
    going_on = {slot: seed for slot, seed in seeds.items() if seed is not None}
    return np.fromiter(going_on, np.intp, len(going_on)), list(going_on.values())


def _nothing_done(count: int, length: int) -> ChunkResult:
    return ChunkResult(
        observation={},
        reward=np.zeros((count, length)),
        executed=np.zeros(count, np.int64),
        terminated=np.zeros(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        finished=NOTHING_FINISHED,
        final_observation=None,
    )


def _note(result: ChunkResult, part: Substep, running: Slots, c: int) -> npt.NDArray[np.bool_]:
    """Add sub-step `c` of the `running` slots to the result; returns which slots ended, [n]."""
    result.reward[:, c] = part.reward
    result.executed[running] += 1
    result.terminated |= part.terminated
    result.truncated |= part.truncated
    if part.success is not None:
        if result.success is None or result.success_within is None:
            result.success = np.zeros(len(result.executed), np.bool_)
            result.success_within = result.success.copy()
        result.success[running] = part.success[running]
        result.success_within |= part.success
    return part.terminated | part.truncated


def _keep(lasts: Observation, rows: Observation, ended: npt.NDArray[np.bool_]) -> None:
    """Copy last observations `rows` of the slots that `ended` into arrays of all slots."""
    for name, values in rows.items():
        if name not in lasts:
            lasts[name] = np.empty((len(ended), *values.shape[1:]), values.dtype)
        lasts[name][ended] = values
