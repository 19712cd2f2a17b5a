"""What the environments of one cell offer to the workers, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import EngineError
from rlinf_async.execution.spaces import Spaces

# axes: n slots of the cell, A action, m slots that finished an episode in this step
Observation = dict[str, npt.NDArray[Any]]
"""Name to array [n, *shape], in the dtypes of `Spaces.observation`."""

NextSeed = Callable[[int], int | None]
"""The seed of the next episode of a slot, given the slot's number within the cell.

None retires the slot: it is not reset, its observation stays the last one, and it is not stepped
until `begin` gives it an episode.
"""

State = dict[str, npt.NDArray[Any]]
"""Name to array: all that the slots of a cell need to go on exactly as they would have."""

NOTHING_FINISHED: npt.NDArray[np.intp] = np.empty(0, np.intp)
NOTHING_FINISHED.flags.writeable = False


@dataclass(slots=True)
class StepResult:
    """One step of a cell. The caller owns all arrays: no later call changes them.

    `observation` is the one to act on next: of slots that finished, the first of the next episode.
    Slots that were not stepped have reward 0, no end, and their observation as it was.
    """

    observation: Observation
    reward: npt.NDArray[np.float64]
    """[n], raw."""
    terminated: npt.NDArray[np.bool_]
    """[n]."""
    truncated: npt.NDArray[np.bool_]
    """[n]; may be set together with `terminated`."""
    finished: npt.NDArray[np.intp]
    """[m], ascending numbers of the slots that finished."""
    final_observation: Observation | None
    """Name to [m, *shape], the true last observations; None where no slot finished."""
    success: npt.NDArray[np.bool_] | None = None
    """[n]; None where no slot's info had `success` or `is_success`."""


@dataclass(slots=True)
class ChunkResult:
    """C simulator steps of a cell, as `StepResult` but for what each sub-step earned.

    A slot that ended inside the chunk stopped there: its end lies on sub-step `executed - 1`, the
    rest of its chunk was not simulated and earned 0.
    """

    observation: Observation
    reward: npt.NDArray[np.float64]
    """[n, C], raw."""
    executed: npt.NDArray[np.int64]
    """[n], 1 to C simulated sub-steps; 0 for a slot that was not stepped."""
    terminated: npt.NDArray[np.bool_]
    """[n]."""
    truncated: npt.NDArray[np.bool_]
    """[n]."""
    finished: npt.NDArray[np.intp]
    """[m], ascending."""
    final_observation: Observation | None
    """Name to [m, *shape]; None where no slot finished."""
    success: npt.NDArray[np.bool_] | None = None
    """[n], that of the last executed sub-step."""
    success_within: npt.NDArray[np.bool_] | None = None
    """[n], whether any executed sub-step succeeded."""


class CellEnvs(Protocol):
    """The environments of one cell, stepped together in the calling thread."""

    spaces: Spaces
    """Of one simulator step: `chunk` is 1 here, whatever `chunk_step` is given."""
    slots: int
    time_limit: int | None
    """Steps after which an episode is truncated; None where the environment alone decides."""
    tasks: tuple[str, ...]
    """[n], the id of the task that each slot runs; they differ in sets such as metaworld/MT10."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot, one seed for each; returns name to [n, *shape]."""
        ...

    def begin(self, slots: npt.NDArray[np.intp], seeds: Sequence[int]) -> Observation:
        """Begin a new episode in `slots` alone; returns name to [len(slots), *shape]."""
        ...

    def step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: npt.NDArray[np.intp] | None = None,
    ) -> StepResult:
        """Step every slot (or `slots`, ascending) once, and begin a new episode where one ends.

        `actions` [n, *A] in the row dtype: float32 raw samples, clipped to the bounds here, or
        int64 choices from 0. `next_seed` is called once for each slot that finishes, in order.
        """
        ...

    def chunk_step(
        self,
        actions: npt.NDArray[Any],
        next_seed: NextSeed,
        *,
        slots: npt.NDArray[np.intp] | None = None,
    ) -> ChunkResult:
        """Up to C steps of every slot (or `slots`); `actions` is [n, C, *A].

        Observations are produced at the chunk's end and at ends of episodes only.
        """
        ...

    def save_state(self) -> State:
        """The state of all slots, by copy; EnvCannotRestore where the simulator has no such."""
        ...

    def restore_state(self, state: State) -> Observation:
        """Go on bit-identically from a saved state, rewards included; the observations [n, ...]."""
        ...

    def close(self) -> None:
        """Free the simulators. Calling it again does nothing."""
        ...


class EnvCannotRestore(EngineError):
    """The environment cannot save and restore its state; the message says why."""


class EnvMismatch(EngineError):
    """An environment returned what its declared space, or Gymnasium's interface, forbids."""

    def __init__(self, env: str, *, slot: int, key: str, expected: object, got: object) -> None:
        self.env, self.slot, self.key, self.expected, self.got = env, slot, key, expected, got
        super().__init__(f"{env}, slot {slot}: {key}: expected {expected}; got {got}")
