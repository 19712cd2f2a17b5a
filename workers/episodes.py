"""Our own episode accounting per slot: returns, lengths and success."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_async.envs.seeding import episode_seed


class EpisodeSums:
    """Return, length and success of each slot's running episode. Axes: n slots, C sub-steps."""

    def __init__(self, slots: int) -> None:
        self._return_n = np.zeros(slots)
        self._length_n = np.zeros(slots, np.int64)
        self._once_n = np.zeros(slots, bool)
        self._last_n = np.zeros(slots, bool)
        self._reports_success = False

    def step(
        self,
        reward: np.ndarray,
        success_n: np.ndarray | None,
        *,
        executed_n: np.ndarray | int = 1,
        within_n: np.ndarray | None = None,
    ) -> None:
        """Count one step of every slot, or a chunk of which `executed_n` sub-steps were made.

        `reward` is [n], or [n, C] of a chunk. Slots that were not stepped have reward 0 and
        `executed_n` 0. `within_n`: whether any sub-step succeeded, as `success_n` for single steps.
        """
        self._return_n += reward if reward.ndim == 1 else reward.sum(axis=1)
        self._length_n += executed_n
        if success_n is not None:
            self._reports_success = True
            self._once_n |= success_n if within_n is None else within_n
            self._last_n = np.where(np.asarray(executed_n) > 0, success_n, self._last_n)

    def take(self, slot: int) -> dict[str, Any]:
        """The sums of the episode that `slot` ended; the next one begins at nothing."""
        reported = self._reports_success
        taken = {
            "episode_return": float(self._return_n[slot]),
            "length": int(self._length_n[slot]),
            "success_once": bool(self._once_n[slot]) if reported else None,
            "success_at_end": bool(self._last_n[slot]) if reported else None,
        }
        self._return_n[slot], self._length_n[slot] = 0.0, 0
        self._once_n[slot] = self._last_n[slot] = False
        return taken


class EpisodeTracker:
    """Follows the training episodes of one cell: their sums, seeds and versions.

    `tasks` [n] are the ids of what the slots run; none where there is nothing to tell apart.
    """

    def __init__(
        self, run_seed: int, first_slot: int, slots: int, *, tasks: Sequence[str] = ()
    ) -> None:
        self.sums = EpisodeSums(slots)
        self._run_seed, self._first_slot = run_seed, first_slot
        self._tasks = tuple(tasks) or ("",) * slots
        self._number = [0] * slots
        self._first_version = [0] * slots
        self._seed = [self._seed_of(slot, 0) for slot in range(slots)]
        self._finished: list[dict[str, Any]] = []

    def first_seeds(self) -> list[int]:
        """The seeds of the first episode of each slot."""
        return list(self._seed)

    def next_seed(self, slot: int) -> int:
        """The seed of the episode that follows the current one of `slot` (0-based in the cell)."""
        return self._seed_of(slot, self._number[slot] + 1)

    def step(self, reward_n: np.ndarray, success_n: np.ndarray | None) -> None:
        """Count one simulator step of every slot; chunks go to `sums.step`."""
        self.sums.step(reward_n, success_n)

    def begin_item(self, slot: int, number: int, seed: int) -> None:
        """An episode of a work list begins in `slot`, whatever was under way there."""
        self.sums.take(slot)
        self._number[slot], self._seed[slot] = number, seed
        self._first_version[slot] = -1

    def finish(self, slot: int, version: int) -> None:
        """The current episode of `slot` ended, and its next one begins; `version` acted last."""
        self.record(slot, version)
        self._seed[slot] = self.next_seed(slot)
        self._number[slot] += 1
        # Whichever version acts next is the new episode's first: see `acted`.
        self._first_version[slot] = -1

    def record(self, slot: int, version: int) -> None:
        """The current episode of `slot` ended; `version` acted last."""
        self._finished.append(
            {
                **self.sums.take(slot),
                "slot": self._first_slot + slot,
                "number": self._number[slot],
                "seed": self._seed[slot],
                "first_version": self._first_version[slot],
                "last_version": version,
                "task": self._tasks[slot],
            }
        )

    def acted(self, version: int) -> None:
        """`version` acts in the coming step: it is the first of every episode that begins there."""
        if -1 in self._first_version:
            self._first_version = [version if v == -1 else v for v in self._first_version]

    def take_finished(self) -> list[dict[str, Any]]:
        """Episodes that ended since the last call, oldest first."""
        finished, self._finished = self._finished, []
        return finished

    def _seed_of(self, slot: int, number: int) -> int:
        return episode_seed(self._run_seed, self._first_slot + slot, number)
