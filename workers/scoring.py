"""Whole episodes of a work list, scored one by one.

Item i of a work list is one episode: its seed and its action noise come from i, and the policy
acts for one slot in a call (but see `MergedPolicies`). So what an item scores does not depend on
how many slots there are, on which of them it runs, or beside what. All items are run to their end:
taking the first to finish would prefer short episodes, and failures of sparse tasks are the
longest.

Axes: n slots of the cell, A action, C sub-steps of a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs, ChunkResult, Observation, StepResult
from rlinf_async.envs.seeding import episode_seed
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models.loading import LoadedPolicy
from rlinf_async.workers.episodes import EpisodeSums

NOISE_STREAM = 3
"""Seed word that keeps the action noise of evaluations apart from every other use of a seed."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One episode of the work list."""

    number: int
    seed: int

    @classmethod
    def of(cls, run_seed: int, number: int) -> Item:
        """Item `number` of the evaluation that `run_seed` stands for."""
        return cls(number, episode_seed(run_seed, number, 0, stream="evaluate"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one slot did in one step (of C simulator steps), for those who keep it."""

    observation: Mapping[str, Array]
    """[*shape], what the action was chosen for."""
    action: Array
    """[*A], as the policy gave it."""
    given: Array
    """[*A], as the cell was given it: clipped within the cell."""
    reward: Any
    executed: int
    terminated: bool
    truncated: bool
    success: bool | None


class Watcher(Protocol):
    """Follows the episodes of all slots; its calls come in this order for each."""

    def begun(self, slot: int, item: Item, observation: Mapping[str, Array]) -> None:
        """An episode has begun; `observation` [*shape] is its first."""
        ...

    def ending(self, slot: int) -> None:
        """The episode ended and its simulation still stands at the end."""
        ...

    def stepped(self, slot: int, step: Step) -> None:
        """A step was made; at an episode's end after `ending`."""
        ...

    def ended(self, slot: int, observation: Mapping[str, Array]) -> None:
        """The episode is over; `observation` [*shape] is its last."""
        ...

    def close(self) -> None:
        """The evaluation is over; episodes under way are dropped."""
        ...


class Policies(Protocol):
    """Whatever acts for the slots of a cell: a trained policy, or an expert."""

    spaces: Spaces

    def begin(self, slot: int, noise: np.random.Generator) -> None:
        """An episode begins in `slot`; its noise comes from `noise`."""
        ...

    def choose(self, observation: Observation, slots: Sequence[int]) -> Array:
        """Stored actions [n, *A] of `slots` for observations [n, *shape]; any for all others."""
        ...

    def stretch(self, actions: Array) -> Array:
        """Stored actions [n, *A] as the cell takes them."""
        ...


class SlotPolicies:
    """A policy that acts for one slot in a call, each with its own noise and memory."""

    def __init__(
        self, load: Callable[[], LoadedPolicy], slots: int, *, deterministic: bool
    ) -> None:
        first = load()
        self.spaces = first.spaces
        self._deterministic = deterministic
        self._of_slot = [
            first if not (slot and first.remembers) else load() for slot in range(slots)
        ]
        self._noise = [np.random.default_rng(0)] * slots

    def begin(self, slot: int, noise: np.random.Generator) -> None:
        """An episode begins in `slot`."""
        self._noise[slot] = noise
        if self._of_slot[slot].remembers:
            self._of_slot[slot].reset()

    def choose(self, observation: Observation, slots: Sequence[int]) -> Array:
        """Stored actions [n, *A] of `slots` for observations [n, *shape]; 0 for all others."""
        action = self.spaces.action
        out = np.zeros((len(self._of_slot), *action.shape), action.row_dtype)
        for slot in slots:
            seen = {name: rows[slot : slot + 1] for name, rows in observation.items()}
            out[slot] = self._of_slot[slot].choose(
                seen, self._noise[slot], deterministic=self._deterministic
            )[0]
        return out

    def stretch(self, actions: Array) -> Array:
        """As `LoadedPolicy.stretch`."""
        return self._of_slot[0].stretch(actions)


class MergedPolicies:
    """One policy call for all slots: faster for large networks, exact only for one split.

    An episode's row in the call, and so its last bits, depend on the slots; sampled noise does too.
    """

    def __init__(
        self, policy: LoadedPolicy, slots: int, *, deterministic: bool, run_seed: int
    ) -> None:
        self.spaces = policy.spaces
        self._policy, self._deterministic = policy, deterministic
        self._begun = np.zeros(slots, np.bool_)
        words = np.random.SeedSequence((run_seed, NOISE_STREAM))
        self._rng = np.random.Generator(np.random.PCG64(words))

    def begin(self, slot: int, noise: np.random.Generator) -> None:
        """An episode begins in `slot`; noise is common to all slots here."""
        self._begun[slot] = True

    def choose(self, observation: Observation, slots: Sequence[int]) -> Array:
        """Stored actions [n, *A] for observations [n, *shape] of all slots."""
        if self._policy.remembers and self._begun.any():
            self._policy.reset(self._begun.copy())
        self._begun[:] = False
        return self._policy.choose(observation, self._rng, deterministic=self._deterministic)

    def stretch(self, actions: Array) -> Array:
        """As `LoadedPolicy.stretch`."""
        return self._policy.stretch(actions)


class Scoring:
    """The items of one worker under way in the slots of its cell."""

    def __init__(
        self,
        envs: CellEnvs,
        policies: Policies,
        watchers: Sequence[Watcher],
        *,
        run_seed: int,
        items: Iterable[int],
    ) -> None:
        self._envs, self._policies, self._watchers = envs, policies, watchers
        self._run_seed = run_seed
        self._left = deque(items)
        self._chunked = policies.spaces.chunk > 1
        self._sums = EpisodeSums(envs.slots)
        self._running: dict[int, Item] = {}
        self._next: dict[int, Item] = {}
        self._finished: list[dict[str, Any]] = []
        self._observation: Observation = {
            spec.name: np.zeros((envs.slots, *spec.shape), spec.dtype)
            for spec in envs.spaces.observation
        }
        self._begin_first()

    @property
    def done(self) -> bool:
        """Whether every item has been scored."""
        return not self._running

    def step(self) -> int:
        """One step of every slot that has an episode; returns the simulator steps made."""
        slots = sorted(self._running)
        before = self._observation
        action = self._policies.choose(before, slots)
        given = self._policies.stretch(action)
        active = None if len(slots) == self._envs.slots else np.array(slots, np.intp)
        result: StepResult | ChunkResult
        if self._chunked:
            result = self._envs.chunk_step(given, self._next_seed, slots=active)
            executed, within = result.executed, result.success_within
        else:
            result = self._envs.step(given, self._next_seed, slots=active)
            executed, within = np.zeros(self._envs.slots, np.int64), None
            executed[slots] = 1
        self._observation = result.observation
        self._sums.step(result.reward, result.success, executed_n=executed, within_n=within)
        self._tell(slots, before, action, given, executed, result)
        self._go_on(result)
        return int(executed.sum())

    def take_finished(self) -> list[dict[str, Any]]:
        """Episodes that were scored since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Drop what is under way."""
        self._running.clear()
        for watcher in self._watchers:
            watcher.close()

    def _begin_first(self) -> None:
        for slot in range(min(self._envs.slots, len(self._left))):
            self._running[slot] = Item.of(self._run_seed, self._left.popleft())
        if not self._running:
            return
        slots = np.array(sorted(self._running), np.intp)
        seeds = [self._running[slot].seed for slot in slots.tolist()]
        for name, rows in self._envs.begin(slots, seeds).items():
            self._observation[name][slots] = rows
        for slot in slots.tolist():
            self._announce(slot)

    def _next_seed(self, slot: int) -> int | None:
        """The contract's `next_seed`: the simulation of `slot` still stands at its end."""
        for watcher in self._watchers:
            watcher.ending(slot)
        if not self._left:
            return None
        item = self._next[slot] = Item.of(self._run_seed, self._left.popleft())
        return item.seed

    def _tell(
        self,
        slots: Sequence[int],
        before: Observation,
        action: Array,
        given: Array,
        executed: Array,
        result: StepResult | ChunkResult,
    ) -> None:
        if not self._watchers:
            return
        for slot in slots:
            step = Step(
                observation={name: rows[slot] for name, rows in before.items()},
                action=action[slot],
                given=given[slot],
                reward=result.reward[slot],
                executed=int(executed[slot]),
                terminated=bool(result.terminated[slot]),
                truncated=bool(result.truncated[slot]),
                success=None if result.success is None else bool(result.success[slot]),
            )
            for watcher in self._watchers:
                watcher.stepped(slot, step)

    def _go_on(self, result: StepResult | ChunkResult) -> None:
        for row, slot in enumerate(result.finished.tolist()):
            item = self._running.pop(slot)
            self._finished.append(
                {**self._sums.take(slot), "slot": slot, "number": item.number, "seed": item.seed}
            )
            final = result.final_observation or {}
            for watcher in self._watchers:
                watcher.ended(slot, {name: rows[row] for name, rows in final.items()})
            if slot in self._next:
                self._running[slot] = self._next.pop(slot)
                self._announce(slot)

    def _announce(self, slot: int) -> None:
        item = self._running[slot]
        words = np.random.SeedSequence((self._run_seed, NOISE_STREAM, item.number))
        self._policies.begin(slot, np.random.Generator(np.random.PCG64(words)))
        seen = {name: rows[slot] for name, rows in self._observation.items()}
        for watcher in self._watchers:
            watcher.begun(slot, item, seen)
