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

NextSeed = Callable[[int], int]
"""The seed of the next episode of a slot, given the slot's number within the cell."""

NOTHING_FINISHED: npt.NDArray[np.intp] = np.empty(0, np.intp)
NOTHING_FINISHED.flags.writeable = False


@dataclass(slots=True)
class StepResult:
    """One step of every slot of a cell. The caller owns all arrays: no later call changes them.

    `observation` is the one to act on next: of slots that finished, the first of the next episode.
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


class CellEnvs(Protocol):
    """The environments of one cell, stepped together in the calling thread."""

    spaces: Spaces
    slots: int
    time_limit: int | None
    """Steps after which an episode is truncated; None where the environment alone decides."""

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot, one seed for each; returns name to [n, *shape]."""
        ...

    def step(self, actions: npt.NDArray[Any], next_seed: NextSeed) -> StepResult:
        """Step every slot once, and begin a new episode in those that finish.

        `actions` [n, *A] in the row dtype: float32 raw samples, clipped to the bounds here, or
        int64 choices from 0. `next_seed` is called once for each slot that finishes, in order.
        """
        ...

    def close(self) -> None:
        """Free the simulators. Calling it again does nothing."""
        ...


class EnvMismatch(EngineError):
    """An environment returned what its declared space, or Gymnasium's interface, forbids."""

    def __init__(self, env: str, *, slot: int, key: str, expected: object, got: object) -> None:
        self.env, self.slot, self.key, self.expected, self.got = env, slot, key, expected, got
        super().__init__(f"{env}, slot {slot}: {key}: expected {expected}; got {got}")
