"""Parts of a cell in this process, stepped by threads.

Threads help where a simulator lets go of Python's lock while it computes, and harm where it does
not; so whether they help is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation, State
from rlinf_async.envs.slots import Slots


class ThreadPart:
    """A cell of some slots; its calls run on a thread of its own."""

    def __init__(self, cell: Any, number: int) -> None:
        self._cell = cell
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"slots-{number}")
        self._answer: Future[Any] | None = None

    def ask_begin(self, slots: Slots, seeds: Sequence[int]) -> None:
        """See `Part`."""
        self._answer = self._thread.submit(self._cell.begin, slots, list(seeds))

    def take_begin(self) -> Observation:
        """See `Part`."""
        begun: Observation = self._taken()
        return begun

    def ask_advance(self, actions: npt.NDArray[Any], slots: Slots) -> None:
        """See `Part`."""
        self._answer = self._thread.submit(advance_some, self._cell, actions, slots)

    def take_advance(self) -> tuple[Substep, Observation]:
        """See `Part`."""
        done: tuple[Substep, Observation] = self._taken()
        return done

    def save_state(self) -> State:
        """See `Part`."""
        state: State = self._thread.submit(self._cell.save_state).result()
        return state

    def restore_state(self, state: State) -> Observation:
        """See `Part`."""
        seen: Observation = self._thread.submit(self._cell.restore_state, state).result()
        return seen

    def close(self) -> None:
        """See `Part`."""
        try:
            self._thread.submit(self._cell.close).result()
        finally:
            self._thread.shutdown()

    def _taken(self) -> Any:
        assert self._answer is not None, "take before ask"
        answer, self._answer = self._answer, None
        return answer.result()


def advance_some(cell: Any, actions: npt.NDArray[Any], slots: Slots) -> tuple[Substep, Observation]:
    """Step `slots` of a cell with their `actions` [m, *A]; what they earned and saw, [m, ...]."""
    spread = np.zeros((cell.slots, *actions.shape[1:]), actions.dtype)
    spread[slots] = actions
    whole = cell.advance(spread, slots)
    part = Substep(
        whole.reward[slots],
        whole.terminated[slots],
        whole.truncated[slots],
        None if whole.success is None else whole.success[slots],
    )
    return part, cell.observe(slots)
