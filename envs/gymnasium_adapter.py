"""Any Gymnasium environment as the environments of a cell: one loop in one thread.

Imported only where such an environment is made, since it imports gymnasium.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep, chunk_step
from rlinf_async.envs.contract import ChunkResult, NextSeed, Observation, State, StepResult
from rlinf_async.envs.gymnasium_layers import (
    refuse_what_is_not_one_environment,
    task_of,
    time_limit,
)
from rlinf_async.envs.gymnasium_parts import SpaceParts
from rlinf_async.envs.gymnasium_slot import SlotEnv
from rlinf_async.envs.gymnasium_state import EnvState, stacked, unstacked
from rlinf_async.envs.mujoco_log import log_to_stderr_only
from rlinf_async.envs.slots import Slots, check_seeds, step_once
from rlinf_async.errors import BadInput
from rlinf_async.hardware.activity import BUILD, working

# axes: n slots of the cell, A action, C sub-steps of a chunk
_SUCCESS_KEYS = ("success", "is_success")


class GymnasiumCell:
    """`CellEnvs` of `count` environments that `factory` makes.

    Observations are copied as soon as an environment returns them, so it may reuse its memory.
    `checks` looks for NaN, infinities and values out of range in every step: see `envs.checks`.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        count: int,
        *,
        name: str,
        first_slot: int = 0,
        checks: bool = True,
    ) -> None:
        self.slots = count
        self._name, self._first_slot = name, first_slot
        self._envs: list[Any] = []
        try:
            with working() as line:
                for slot in range(count):
                    line.note(BUILD, first_slot + slot)
                    self._envs.append(self._make(factory))
            first = self._envs[0]
            parts = SpaceParts(
                first.observation_space,
                first.action_space,
                count,
                name=name,
                first_slot=first_slot,
                checks=checks,
            )
        except BaseException:
            self.close()
            raise
        self.time_limit = time_limit(first)
        self.tasks = tuple(task_of(env, name) for env in self._envs)
        self.fps = (getattr(first, "metadata", None) or {}).get("render_fps")
        """Steps in a second of simulated time; None where the environment does not say."""
        self.spaces, self._actions = parts.spaces, parts.actions
        self._table, self._checks = parts.table, parts.checks
        self._slots = [
            SlotEnv(env, parts.leaves, name=name, slot=first_slot + slot, bounds=checks)
            for slot, env in enumerate(self._envs)
        ]

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot; returns name to [n, *shape]."""
        check_seeds(seeds, self.slots, self._name)
        return self.begin(np.arange(self.slots), seeds)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in `slots` alone; returns name to [len(slots), *shape]."""
        chosen, now = np.asarray(slots, np.intp), self._table.now
        with working() as line:
            for slot, seed in zip(chosen.tolist(), seeds, strict=True):
                env = self._slots[slot]
                env.store(env.begin(seed, line), now, slot)
        self._table.begun(chosen)
        begun = self._table.observe(chosen)
        if self._checks is not None:
            self._checks.observations(begun, chosen)
        return begun

    def step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: Slots | None = None,
    ) -> StepResult:
        """Step every slot within an episode (or `slots`) once, and go on where one ends."""
        return step_once(self, actions, next_seed, self._table.chosen(slots))

    def chunk_step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: Slots | None = None,
    ) -> ChunkResult:
        """Up to C steps of every slot within an episode (or `slots`); `actions` is [n, C, *A].

        Where rendering is left to Gymnasium's `AddRenderObservation`, the steps between are not
        rendered; other environments render as they like, and what they return is not looked at.
        """
        chosen = self._table.chosen(slots)
        return chunk_step(_Chunk(self, actions.shape[1]), actions, next_seed, chosen)

    def advance(
        self, actions: npt.NDArray[Any], slots: Slots | None, *, seen: bool = True
    ) -> Substep:
        """Step `slots` (None: all) once; without `seen`, only ends of episodes are observed."""
        chosen, table = self._table.chosen(slots), self._table
        if self._checks is not None:
            self._checks.actions(actions, chosen)
        action_of = self._actions.each(actions)
        nothing = np.zeros(self.slots, np.bool_)
        part = Substep(np.zeros(self.slots), nothing, nothing.copy())
        stored = []
        with working() as line:
            for slot in chosen.tolist():
                env = self._slots[slot]
                observation, part.reward[slot], terminated, truncated, info = env.step(
                    action_of(slot), line, seen=seen
                )
                part.terminated[slot], part.truncated[slot] = terminated, truncated
                if seen or terminated or truncated:
                    env.store(observation, table.now, slot)
                    stored.append(slot)
                if info:
                    _note_success(part, slot, info)
        table.length[chosen] += 1
        table.live[chosen] = ~(part.terminated | part.truncated)[chosen]
        self._check(part, chosen, stored)
        return part

    @property
    def environments(self) -> Sequence[Any]:
        """The environments by slot, for whoever draws them."""
        return tuple(self._envs)

    def observe(self, slots: Slots | None) -> Observation:
        """Copies of the present observations of `slots` [m, ...] (None: all)."""
        return self._table.observe(slots)

    def save_state(self) -> State:
        """The state of all slots, by copy; EnvCannotRestore says why where there is none.

        Names begin with `env/`, `now/` (observations) and `episode/`.
        """
        table = self._table
        each = [EnvState(env, name=self._name).save() for env in self._envs]
        return (
            {f"env/{key}": value for key, value in stacked(each).items()}
            | {f"now/{key}": value.copy() for key, value in table.now.items()}
            | {"episode/length": table.length.copy(), "episode/live": table.live.copy()}
        )

    def restore_state(self, state: State) -> Observation:
        """Go on bit-identically from a saved state, rewards included; the observations [n, ...]."""
        table = self._table
        each = unstacked(
            {k.removeprefix("env/"): v for k, v in state.items() if k.startswith("env/")},
            self.slots,
        )
        for env, slot, saved, length in zip(
            self._envs, self._slots, each, state["episode/length"].tolist(), strict=True
        ):
            if not slot.has_begun:
                env.reset(seed=0)  # makes what only a reset makes; the state then replaces it
            EnvState(env, name=self._name).restore(saved)
            slot.resume(length)
        for key, rows in table.now.items():
            rows[...] = state[f"now/{key}"]
        table.length[...], table.live[...] = state["episode/length"], state["episode/live"]
        return self.observe(None)

    def close(self) -> None:
        """Close every environment; the first failure is raised after the last is closed."""
        failures: list[Exception] = []
        while self._envs:
            try:
                self._envs.pop().close()
            except Exception as failure:
                failures.append(failure)
        if failures and sys.exception() is None:
            raise failures[0]

    def _check(self, part: Substep, chosen: Slots, stored: list[int]) -> None:
        if self._checks is None:
            return
        self._checks.rewards(part.reward)
        if len(stored) == self.slots:
            self._checks.observations(self._table.now, chosen)
        elif stored:
            rows = np.array(stored, np.intp)
            self._checks.observations(self._table.observe(rows), rows)

    def _make(self, factory: Callable[[], Any]) -> Any:
        who = f"environment {self._name!r}"
        env = made(factory, who)
        refuse_what_is_not_one_environment(env, who)
        if any(env is other for other in self._envs):
            raise BadInput(who, "the factory returned the same object twice", fix="make a new one")
        for kind in ("observation_space", "action_space"):
            space = getattr(env, kind, None)
            if space is None:
                raise BadInput(who, f"it declares no {kind}")
            expected = getattr(self._envs[0], kind) if self._envs else space
            if space != expected:
                raise BadInput(who, f"its slots differ in {kind}", expected=expected, got=space)
        return env


class _Chunk:
    """A cell during one chunk: only its last sub-step is observed."""

    def __init__(self, cell: GymnasiumCell, length: int) -> None:
        self.slots = cell.slots
        self._cell, self._left = cell, length

    def advance(self, actions: npt.NDArray[Any], slots: Slots | None) -> Substep:
        self._left -= 1
        return self._cell.advance(actions, slots, seen=self._left == 0)

    def observe(self, slots: Slots | None) -> Observation:
        return self._cell.observe(slots)

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        return self._cell.begin(slots, seeds)


def made(factory: Callable[[], Any], who: str) -> Any:
    """What `factory` makes; whatever it raises becomes BadInput, with its traceback as a note."""
    try:
        env = factory()
    except BadInput:
        raise
    except Exception as cause:
        error = BadInput(who, f"its constructor raised {type(cause).__name__}: {cause}")
        error.add_note("".join(traceback.format_exception(cause)))
        raise error from cause
    if "mujoco" in sys.modules:
        log_to_stderr_only()
    return env


def _note_success(part: Substep, slot: int, info: Any) -> None:
    succeeded = success_of(info)
    if succeeded is None:
        return
    if part.success is None:
        part.success = np.zeros(len(part.reward), np.bool_)
    part.success[slot] = succeeded


def success_of(info: Any) -> bool | None:
    """What an info says of success; None where it says nothing."""
    for key in _SUCCESS_KEYS:
        value = info.get(key) if isinstance(info, dict) else None
        if isinstance(value, bool | int | float | np.generic | np.ndarray):
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "biuf":
                return bool(array.item() > 0)
    return None
