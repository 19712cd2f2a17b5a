"""What all wrappers share: a cell around a cell, which changes what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import (
    CellEnvs,
    ChunkResult,
    NextSeed,
    Observation,
    State,
    StepResult,
)
from rlinf_async.execution.spaces import ArraySpec, Spaces

# axes: n slots of the cell, C sub-steps of a chunk, A action
Slots = npt.NDArray[np.intp]
Result = TypeVar("Result", StepResult, ChunkResult)
_INNER, _OWN = "inner/", "own/"


class Wrapper(Protocol):
    """A record that a script gives."""

    def around(self, cell: CellEnvs) -> CellEnvs:
        """The wrapped cell; BadInput where the wrapper does not fit what `cell` observes."""
        ...


class WrappedCell:
    """Hands everything through; subclasses override the hooks that they need.

    `act` sees actions on their way in. `observe` sees observations of the same slots as the result
    that they come in; `result` the rest of it. `started` is told which slots begin an episode.
    """

    def __init__(self, cell: CellEnvs, spaces: Spaces | None = None) -> None:
        self.inner = cell
        self.slots = cell.slots
        self.spaces = spaces or cell.spaces
        self.time_limit, self.tasks = cell.time_limit, cell.tasks

    def act(self, actions: npt.NDArray[Any], slots: Slots | None) -> npt.NDArray[Any]:
        """Actions [n, *A] (or [n, C, *A]) for the cell inside."""
        return actions

    def transform(self, observation: Observation) -> Observation:
        """Observations [m, ...] of any slots; must not depend on anything else."""
        return observation

    def earn(
        self, reward: npt.NDArray[np.float64], stepped: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        """Rewards [n] or [n, C]; only those marked in `stepped` (same shape) were earned."""
        return reward

    def reset(self, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        return self._started(np.arange(self.slots), self.inner.reset(seeds))

    def begin(self, slots: Slots, seeds: Sequence[int]) -> Observation:
        """As in `CellEnvs`."""
        return self._started(slots, self.inner.begin(slots, seeds))

    def step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> StepResult:
        """As in `CellEnvs`."""
        begun, ask = _remembering(next_seed)
        result = self.inner.step(self.act(actions, slots), ask, slots=slots)
        stepped = _mask(self.slots, slots)
        result.reward = self.earn(result.reward, stepped)
        return self._finish(result, stepped, begun)

    def chunk_step(
        self, actions: npt.NDArray[Any], next_seed: NextSeed, *, slots: Slots | None = None
    ) -> ChunkResult:
        """As in `CellEnvs`."""
        begun, ask = _remembering(next_seed)
        result = self.inner.chunk_step(self.act(actions, slots), ask, slots=slots)
        earned = np.arange(result.reward.shape[1]) < result.executed[:, None]
        result.reward = self.earn(result.reward, earned)
        return self._finish(result, result.executed > 0, begun)

    def save_state(self) -> State:
        """As in `CellEnvs`; its own part stands under `own/`."""
        inner = {f"{_INNER}{name}": values for name, values in self.inner.save_state().items()}
        return inner | {f"{_OWN}{name}": values.copy() for name, values in self.own().items()}

    def restore_state(self, state: State) -> Observation:
        """As in `CellEnvs`."""
        own = self.own()
        for name, values in own.items():
            values[...] = state[f"{_OWN}{name}"]
        inner = {n.removeprefix(_INNER): v for n, v in state.items() if n.startswith(_INNER)}
        return self.restored(self.inner.restore_state(inner))

    def close(self) -> None:
        """As in `CellEnvs`."""
        self.inner.close()

    def own(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays that must be saved and restored in place."""
        return {}

    def started(self, slots: Slots, observation: Observation) -> Observation:
        """First observations of new episodes in `slots`, as the next wrapper sees them."""
        return self.transform(observation)

    def stepped(self, slots: Slots, observation: Observation) -> Observation:
        """Observations after a step of `slots`, in the order of `slots`."""
        return self.transform(observation)

    def restored(self, observation: Observation) -> Observation:
        """Observations [n, ...] after a restore."""
        return self.transform(observation)

    def _started(self, slots: Slots, observation: Observation) -> Observation:
        return self.started(np.asarray(slots, np.intp), observation)

    def _finish(
        self, result: Result, stepped: npt.NDArray[np.bool_], begun: dict[int, bool]
    ) -> Result:
        """Pass on observations: last ones, those after a plain step, and those that begin."""
        present = result.observation
        finals = result.final_observation
        if finals is not None:
            result.final_observation = self.stepped(result.finished, finals)
        new = np.array([s for s in result.finished.tolist() if begun.get(s)], np.intp)
        going = stepped.copy()
        going[result.finished] = False
        if finals is None and going.all():
            result.observation = self.stepped(np.arange(self.slots), present)
            return result
        out = self.now(present)
        self._put(out, np.flatnonzero(going), self.stepped, present)
        self._put(out, new, self.started, present)
        ended = np.setdiff1d(result.finished, new)
        if ended.size and result.final_observation is not None:
            at = np.searchsorted(result.finished, ended)
            for name, values in out.items():
                values[ended] = result.final_observation[name][at]
        result.observation = out
        return result

    def now(self, present: Observation) -> Observation:
        """Observations [n, ...] of slots that nothing happened to, in arrays of the caller's."""
        return self.transform(present)

    def _put(self, out: Observation, slots: Slots, hook: Any, present: Observation) -> None:
        if slots.size:
            rows = hook(slots, {name: values[slots] for name, values in present.items()})
            for name, values in out.items():
                values[slots] = rows[name]


def with_observation(spaces: Spaces, specs: Sequence[ArraySpec]) -> Spaces:
    """The same spaces with other observations."""
    return replace(spaces, observation=tuple(specs))


def _mask(count: int, slots: Slots | None) -> npt.NDArray[np.bool_]:
    mask = np.full(count, slots is None)
    if slots is not None:
        mask[slots] = True
    return mask


def _remembering(next_seed: NextSeed) -> tuple[dict[int, bool], NextSeed]:
    """Which slots were given a seed, and the function that asks and notes it."""
    begun: dict[int, bool] = {}

    def ask(slot: int) -> int | None:
        seed = next_seed(slot)
        begun[slot] = seed is not None
        return seed

    return begun, ask
