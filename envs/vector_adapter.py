"""Gymnasium's vector environments, which reset themselves, as the environments of a cell.

Whatever the autoreset mode, each episode begins with the seed that the run gives it, so that the
stored transitions are those of our own loop:

    DISABLED    a finished slot is reset by `reset(seed=..., options={"reset_mask": mask})`.
    NEXT_STEP   the same, before the step in which it would reset itself: no action is ignored.
    SAME_STEP   the last observation is taken from `infos["final_obs"]`; the slot, which has reset
                itself without our seed, is reset once more. Costs one reset more per episode.

`reset_mask` is part of the DISABLED mode; in the other modes Gymnasium's SyncVectorEnv and
AsyncVectorEnv take it too, and others say so by `metadata["reset_mask"] = True`. Without it a slot
cannot be given its own seed. In SAME_STEP mode the environment's own resets are then used as they
are: only the first episode of a slot has the run's seed, the later ones follow from it by the
environment's generator, and no slot can be retired. In NEXT_STEP mode it is refused.

A vector environment steps all of its slots: those that are retired, or that have ended inside a
chunk, are simulated on with actions of zeros, and what they return is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlinf_async.envs.chunks import Substep, chunk_step
from rlinf_async.envs.contract import (
    ChunkResult,
    EnvCannotRestore,
    NextSeed,
    Observation,
    State,
    StepResult,
)
from rlinf_async.envs.gymnasium_adapter import made
from rlinf_async.envs.gymnasium_layers import task_of, time_limit
from rlinf_async.envs.gymnasium_parts import SpaceParts
from rlinf_async.envs.slots import Slots, check_seeds, step_once
from rlinf_async.envs.vector_calls import VectorCalls, success_in
from rlinf_async.errors import BadInput
from rlinf_async.hardware.activity import BUILD, working

# axes: n slots of the cell, A action, C sub-steps of a chunk
_UNUSED_SEED = 0
"""Of resets whose episode nobody looks at."""


class VectorCell:
    """`CellEnvs` of one vector environment; `factory(num_envs=n)` makes it."""

    def __init__(
        self,
        factory: Callable[..., Any],
        count: int,
        *,
        name: str,
        first_slot: int = 0,
        checks: bool = True,
    ) -> None:
        self.slots, self._name = count, name
        who = f"environment {name!r}"
        with working() as line:
            line.note(BUILD, first_slot, 0, count)
            self._env = made(lambda: factory(num_envs=count), who)
        try:
            self._mode = _autoreset_mode(self._env, count, who)
            self._masks = _takes_masks(self._env, self._mode, who)
            parts = SpaceParts(
                self._env.single_observation_space,
                self._env.single_action_space,
                count,
                name=name,
                first_slot=first_slot,
                checks=checks,
            )
        except BaseException:
            self.close()
            raise
        base = self._env.unwrapped
        within = base.envs if isinstance(base, SyncVectorEnv) else []
        self.time_limit = time_limit(within[0]) if within else None
        self.tasks = tuple(task_of(env, name) for env in within) or (name,) * count
        self._calls = VectorCalls(
            self._env, parts.leaves, name=name, first_slot=first_slot, bounds=checks
        )
        self.spaces, self._actions = parts.spaces, parts.actions
        self._table, self._checks = parts.table, parts.checks
        self._ended = np.zeros(count, np.bool_)
        """Slots that the environment takes for finished, [n]."""
        self._renewed = np.zeros(count, np.bool_)
        """Slots that began an episode by themselves in the last step, [n]."""
        self._first: Observation = {}
        """What those of `_renewed` observed first, [n, ...]."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot; returns name to [n, *shape]."""
        check_seeds(seeds, self.slots, self._name)
        self._ended[...] = False
        return self._began(np.arange(self.slots), self._calls.reset(list(map(int, seeds))))

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in `slots` alone; returns name to [len(slots), *shape]."""
        chosen = np.asarray(slots, np.intp)
        if self._masks:
            return self._began(chosen, self._reset_some(chosen, seeds))
        if not self._renewed[chosen].all():
            raise self._needs_masks("begin episodes at will")
        return self._began(chosen, self._first)

    def step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: Slots | None = None,
    ) -> StepResult:
        """Step every slot within an episode once, and go on where one ends."""
        return step_once(self, actions, next_seed, self._table.chosen(slots))

    def chunk_step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: Slots | None = None,
    ) -> ChunkResult:
        """Up to C steps of every slot within an episode; `actions` is [n, C, *A]."""
        if actions.shape[1] > 1 and not self._masks:
            raise self._needs_masks("act in chunks: a slot that ends in one would go on by itself")
        return chunk_step(self, actions, next_seed, self._table.chosen(slots))

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        """Step all slots; only `slots` (None: all), which must be all live ones, are looked at."""
        table, chosen = self._table, self._table.chosen(slots)
        if chosen.size < np.count_nonzero(table.live):
            raise ValueError(f"{self._name}: a vector environment steps all slots, not {chosen}")
        if self._checks is not None:
            self._checks.actions(actions, chosen)
        answer = self._step(actions, chosen)
        part = Substep(answer.reward, answer.terminated, answer.truncated, success_in(answer))
        others = np.ones(self.slots, np.bool_)
        others[chosen] = False
        for values in (part.reward, part.terminated, part.truncated, part.success):
            if values is not None:
                values[others] = 0
        for name, values in table.now.items():
            values[chosen] = answer.rows[name][chosen]
        table.length[chosen] += 1
        table.live &= ~(part.terminated | part.truncated)
        if self._checks is not None:
            self._checks.rewards(part.reward)
            self._checks.observations(table.observe(chosen), chosen)
        return part

    def observe(self, slots: Slots | None) -> Observation:
        """Copies of the present observations of `slots` [m, ...] (None: all)."""
        return self._table.observe(slots)

    def save_state(self) -> State:
        """EnvCannotRestore: Gymnasium gives no access to the state of a vector environment."""
        raise self._cannot_restore()

    def restore_state(self, state: State) -> Observation:
        """As `save_state`."""
        raise self._cannot_restore()

    def close(self) -> None:
        """Close the vector environment; again does nothing."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _step(self, actions: npt.NDArray[Any], chosen: Slots) -> Any:
        """Step all slots, those that are not `chosen` with zeros; rows are last observations."""
        used = np.zeros_like(actions)
        used[chosen] = actions[chosen]
        dead = np.flatnonzero(self._ended)
        if dead.size and self._mode == AutoresetMode.DISABLED:
            # Retired, or ended inside a chunk: in this mode they may not be stepped as they are.
            self._reset_some(dead, [_UNUSED_SEED] * dead.size)
        answer = self._calls.step(self._actions.together(used), self._table.length)
        ended = answer.terminated | answer.truncated
        if self._mode != AutoresetMode.SAME_STEP:
            self._ended = ended
            return answer
        self._renewed = ended
        if ended.any():
            self._first = {name: values.copy() for name, values in answer.rows.items()}
            looked_at = np.flatnonzero(ended & self._table.live)
            self._calls.put_last_observations(answer, looked_at)
        return answer

    def _reset_some(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        given: list[int | None] = [None] * self.slots
        mask = np.zeros(self.slots, np.bool_)
        for slot, seed in zip(slots.tolist(), seeds, strict=True):
            given[slot], mask[slot] = int(seed), True
        self._ended = self._ended & ~mask
        return self._calls.reset(given, mask)

    def _began(self, slots: Slots, rows: Observation) -> Observation:
        for name, values in self._table.now.items():
            values[slots] = rows[name][slots]
        self._table.begun(slots)
        begun = self._table.observe(slots)
        if self._checks is not None:
            self._checks.observations(begun, slots)
        return begun

    def _needs_masks(self, what: str) -> BadInput:
        return BadInput(
            f"environment {self._name!r}",
            f"a vector environment that resets itself cannot {what}",
            expected="one that takes reset(options={'reset_mask': mask})",
            fix="make it with autoreset_mode=AutoresetMode.DISABLED",
        )

    def _cannot_restore(self) -> EnvCannotRestore:
        return EnvCannotRestore(
            f"{self._name} cannot save and restore its state: it is a vector environment; a "
            "factory that makes one environment can, if that has get_state() and set_state(state)"
        )


def _autoreset_mode(env: Any, count: int, who: str) -> AutoresetMode:
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise BadInput(
            who,
            "a factory with a parameter num_envs must return a gymnasium.vector.VectorEnv",
            got=f"a {type(env).__name__}",
        )
    if env.num_envs != count:
        raise BadInput(
            who, "a vector environment of another size", expected=count, got=env.num_envs
        )
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise BadInput(
            who,
            "its metadata do not say how it resets",
            expected="an AutoresetMode as metadata['autoreset_mode']",
            got=repr(mode),
        ) from None


def _takes_masks(env: Any, mode: AutoresetMode, who: str) -> bool:
    base = env.unwrapped
    own = isinstance(base, SyncVectorEnv)
    if isinstance(base, AsyncVectorEnv):
        # Without shared memory its workers forget, at such a reset, that they need not reset again.
        own = bool(base.shared_memory) or mode != AutoresetMode.NEXT_STEP
    takes = own or mode == AutoresetMode.DISABLED or bool(env.metadata.get("reset_mask"))
    if not takes and mode == AutoresetMode.NEXT_STEP:
        raise BadInput(
            who,
            "a vector environment that resets itself in the next step, and not slot by slot",
            expected="autoreset mode DISABLED or SAME_STEP, or metadata['reset_mask'] = True where "
            "reset(options={'reset_mask': mask}) is taken",
        )
    return takes
