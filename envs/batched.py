"""The environments of a cell stepped by `mujoco.batch.Batch`: all simulations in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.actions import ActionDecoder
from rlinf_async.envs.chunks import Substep, chunk_step, next_seeds
from rlinf_async.envs.contract import (
    NOTHING_FINISHED,
    ChunkResult,
    NextSeed,
    Observation,
    State,
    StepResult,
)
from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.seeding import episode_generator
from rlinf_async.envs.sims import Slots, open_sims
from rlinf_async.envs.slots import check_seeds
from rlinf_async.execution.spaces import ArraySpec, Spaces

# axes: n slots of the cell, A action, C sub-steps of a chunk
_NEVER = 2**62


class BatchedCell:
    """`CellEnvs` of a `BatchedTask`.

    `dtype` is that of float observations: float32 as in segments, or float64 to compare bits.
    """

    def __init__(self, task: BatchedTask, count: int, *, dtype: str = "float32") -> None:
        self.slots = count
        self.time_limit = task.time_limit
        self.tasks = (task.name,) * count
        self._name, self._frame_skip = task.name, task.frame_skip
        self.sims = open_sims(
            task.model_file,
            count,
            frame_skip=task.frame_skip,
            persistent=task.persistent,
            listed_contacts=task.listed_contacts,
        )
        self._elapsed = self.sims.keep("cell/elapsed", dtype=np.int64)
        """Steps of each episode, less those of `_uncounted`."""
        self._uncounted = 0
        """Steps of all slots that are not yet in `_elapsed`: few calls need it up to date."""
        self._live = self.sims.keep("cell/live", dtype=np.bool_)
        """Slots that are within an episode; the others are not stepped."""
        self.rules = task.rules(self.sims)
        self.spaces = Spaces(
            observation=tuple(_with_dtype(spec, dtype) for spec in self.rules.observation),
            action=self.rules.action_spec(),
        )
        self._decode = ActionDecoder(self.spaces.action, count)
        self._reset_stage, self._step_stage = _stages(fresh=task.fresh)
        self._limit = _NEVER if task.time_limit is None else task.time_limit
        self._all_live = False
        self._before_limit = 0
        """Steps that can be made before an episode may reach its limit, at least."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot; returns name to [n, *shape]."""
        check_seeds(seeds, self.slots, self._name)
        return self.begin(np.arange(self.slots), seeds)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in `slots` alone, ascending; returns name to [len(slots), *shape]."""
        chosen = np.asarray(slots, np.intp)
        self._start(chosen, seeds)
        return self.observe(chosen)

    def step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: Slots | None = None,
    ) -> StepResult:
        """Step every slot within an episode (or `slots`) once, and go on where one ends."""
        part = self.advance(actions, self._chosen(slots))
        observation = self.observe(None)
        result = StepResult(
            observation,
            part.reward,
            part.terminated,
            part.truncated,
            NOTHING_FINISHED,
            None,
            part.success,
        )
        if not self._all_live:
            result.finished = np.flatnonzero(part.terminated | part.truncated)
        if result.finished.size:
            result.final_observation = {
                name: rows[result.finished] for name, rows in observation.items()
            }
            begun, seeds = next_seeds(result.finished, next_seed)
            if begun.size:
                self._start(begun, seeds)
                self.rules.observe(observation, begun)
        return result

    def chunk_step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: Slots | None = None,
    ) -> ChunkResult:
        """Up to C steps of every slot within an episode (or `slots`); `actions` is [n, C, *A]."""
        return chunk_step(self, actions, next_seed, self._chosen(slots))

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """Simulate one step of `slots` (None: all); observe and begin nothing."""
        action, rules, count = self._decode(actions), self.rules, self.slots
        rules.act(action, slots)
        rules.before_step(slots)
        ids = None if slots is None else slots.astype(np.int32)
        self.sims.batch.step(ids, nstep=self._frame_skip, stage=self._step_stage)
        self.sims.refresh(slots)
        terminated, truncated = ends = np.zeros((2, count), np.bool_)
        outcome = Substep(np.zeros(count), terminated, truncated)
        if rules.reports_success:
            outcome.success = np.zeros(count, np.bool_)
        rules.judge(action, outcome, slots)
        if outcome.terminated is not terminated or outcome.truncated is not truncated:
            # A task may put its own arrays there.
            ends[...] = outcome.terminated, outcome.truncated
            outcome.terminated, outcome.truncated = terminated, truncated
        if slots is None:
            self._uncounted += 1
        else:
            self._elapsed[slots] += 1
            _keep_only(slots, outcome)
        self._note_ends(ends)
        return outcome

    def observe(self, slots: Slots | None) -> Observation:
        """The present observations of `slots` [m, ...] (None: all) in new arrays."""
        out = {
            spec.name: np.empty((self.slots, *spec.shape), spec.dtype)
            for spec in self.spaces.observation
        }
        self.rules.observe(out, slots)
        return out if slots is None else {name: rows[slots] for name, rows in out.items()}

    def save_state(self) -> State:
        """The state of all slots, by copy: integration states, derived fields, the task's memory.

        Names are `physics` or begin with `derived/`, `kept/` or `model/` (varied fields).
        """
        self._count()
        return self.sims.saved()

    def restore_state(self, state: State) -> Observation:
        """Go on bit-identically from a saved state, rewards included; the observations [n, ...]."""
        self.sims.restore(state)
        self._uncounted = 0
        self._all_live, self._before_limit = bool(self._live.all()), 0
        self.rules.after_restore()
        return self.observe(None)

    def close(self) -> None:
        """Nothing to free before the cell itself is."""

    def _start(self, slots: Slots, seeds: Sequence[int]) -> None:
        """Begin episodes and observe nothing.

        What a task draws comes from the generator that Gymnasium makes of the seed, and the
        operations and their order are Gymnasium's, so the states are its own too.
        """
        batch, rules, ids = self.sims.batch, self.rules, slots.astype(np.int32)
        rngs = [episode_generator(seed) for seed in seeds]
        batch.reset(ids, stage=self._reset_stage)
        rules.randomize(slots, rngs)
        if self.sims.constants_follow:
            batch.set_const(ids)
        rules.start(slots, rngs)
        # Besides the derived fields, this computes the warm start of the first step's solver.
        batch.forward(ids)
        self.sims.refresh(slots)
        self._count()
        self._elapsed[slots], self._live[slots] = 0, True
        self._all_live = bool(self._live.all())
        rules.after_start(slots)

    def _chosen(self, slots: Slots | None) -> Slots | None:
        """The slots to step, None for all; only those within an episode can be."""
        if slots is None:
            if self._all_live:
                return None
            chosen = np.flatnonzero(self._live)
            if not chosen.size:
                raise ValueError(f"{self._name}: no slot is within an episode: begin one first")
            return chosen
        chosen = np.asarray(slots, np.intp)
        if not self._live[chosen].all():
            idle = chosen[~self._live[chosen]].tolist()
            raise ValueError(f"{self._name}: slots {idle} are not within an episode")
        return None if chosen.size == self.slots else chosen

    def _note_ends(self, ends: npt.NDArray[np.bool_]) -> None:
        """Truncate episodes at the time limit, and take slots whose episodes ended out of `_live`.

        `ends` [2, n] are the rows of terminated and of truncated slots. Most steps end none: a
        count of the steps left spares them the comparison.
        """
        self._before_limit -= 1
        if self._before_limit <= 0:
            self._count()
            ends[1] |= self._live & (self._elapsed >= self._limit)
        if (self._before_limit <= 0 or self.rules.ends_episodes) and np.count_nonzero(ends):
            self._live &= ~(ends[0] | ends[1])
            self._all_live = False
        if self._before_limit <= 0:
            self._before_limit = self._limit - int(self._elapsed.max(where=self._live, initial=0))

    def _count(self) -> None:
        """Bring `_elapsed` up to date."""
        if self._uncounted:
            self._elapsed += self._uncounted
            self._uncounted = 0


def _keep_only(slots: Slots, outcome: Substep) -> None:
    """Clear the rows of slots that were not stepped."""
    others = ~_mask(slots, len(outcome.reward))
    for values in (outcome.reward, outcome.terminated, outcome.truncated, outcome.success):
        if values is not None:
            values[others] = 0


def _mask(slots: Slots, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[slots] = True
    return mask


def _with_dtype(spec: ArraySpec, dtype: str) -> ArraySpec:
    if np.dtype(spec.dtype).kind != "f":
        return spec
    return dataclasses.replace(spec, dtype=dtype)


def _stages(*, fresh: bool) -> tuple[int, int]:
    """How far to compute after a reset, which `forward` follows, and after a step."""
    import mujoco

    none, velocity = mujoco.mjtStage.mjSTAGE_NONE, mujoco.mjtStage.mjSTAGE_VEL
    return int(none), int(velocity if fresh else none)
