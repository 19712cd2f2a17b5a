"""A worker that knows what to do: it writes an expert's actions into batches, and records episodes.

The expert is a named function, or a small frozen dataclass with `__call__`, from observations (name
to array [n, *shape], raw) to actions [n, *A] as the environment takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.seeding import episode_seed
from rlinf_async.errors import BadInput
from rlinf_async.execution.records import Batch
from rlinf_async.execution.worker import Worker, WorkerContext
from rlinf_async.recording.writer import EpisodeWriter, RecordingWriter

Expert = Callable[[Mapping[str, np.ndarray]], np.ndarray]

DEMONSTRATOR_SLOT = 1 << 40
"""Demonstrations draw their seeds as if from this slot on: training never draws them too."""


class ExpertWorker(Worker):
    """Relabels batches (DAgger, Ross et al., 2011) and demonstrates whole episodes.

    ```python
    expert = run.worker(ExpertWorker, expert=expert_action, interpreter=envs.interpreter)
    await expert.relabel(batch=batch)
    await expert.demonstrate(folder="demos", env=envs.env, episodes=25, seed=0)
    ```

    Waits for:    calls of the script (input).
    Unblocked by: the script.
    """

    def __init__(self, context: WorkerContext, *, expert: Expert) -> None:
        super().__init__(context)
        self._expert = expert

    def relabel(self, batch: Batch) -> dict[str, float]:
        """Put the expert's actions in place of those in the rows of `batch`.

        Returns `disagreement`, the mean absolute difference between the two (of choices, the share
        that differ). Log-probs and rewards in the rows remain those of the actions that were taken.
        """
        difference, count = 0.0, 0
        for segment in batch.segments:
            assert segment.arrays is not None, "a batch without views of its rows"
            action = segment.arrays["action"]
            if "executed" in segment.arrays:
                raise BadInput("expert.relabel", "actions come in chunks", expected="chunk=1")
            wanted = self._actions_for(segment.arrays, action)
            choices = np.issubdtype(action.dtype, np.integer)
            apart = (action != wanted) if choices else np.abs(action - wanted)
            difference, count = difference + float(apart.sum()), count + apart.size
            action[...] = wanted
        return {"disagreement": difference / count}

    def demonstrate(
        self, folder: str, env: Any, episodes: int, seed: int, limit: int = 1000
    ) -> dict[str, float]:
        """Record so many episodes of the expert, behind those that the folder holds.

        An episode ends with success, at the environment's own end, or after `limit` steps.

        Args:
            env: `run.envs(...).env`.
            seed: of the run.

        Returns `episodes`, their number, and `success`, the share that succeeded.
        """
        cell = make_cell(env, episodes)
        try:
            writer = RecordingWriter(folder, spaces=cell.spaces, env=_name(env))
            first = DEMONSTRATOR_SLOT
            seeds = [episode_seed(seed, first + slot, 0) for slot in range(episodes)]
            seen = cell.reset(seeds)
            open_episodes = [writer.open(seed=each) for each in seeds]
            succeeded = self._play(cell, seen, open_episodes, limit)
        finally:
            cell.close()
        return {"episodes": float(episodes), "success": float(np.mean(succeeded))}

    def _actions_for(self, arrays: Mapping[str, np.ndarray], action: np.ndarray) -> np.ndarray:
        """The expert's actions for the observations before each step, [T, n, *A]."""
        horizon, slots = action.shape[:2]
        seen = {
            name.removeprefix("obs/"): rows[:horizon].reshape(-1, *rows.shape[2:])
            for name, rows in arrays.items()
            if name.startswith("obs/")
        }
        wanted = np.asarray(self._expert(seen), dtype=action.dtype)
        if wanted.shape != (horizon * slots, *action.shape[2:]):
            raise BadInput(
                "expert",
                "returned actions of another shape",
                expected=[horizon * slots, *action.shape[2:]],
                got=list(wanted.shape),
            )
        return wanted.reshape(action.shape)

    def _play(
        self, cell: Any, seen: dict[str, np.ndarray], episodes: list[EpisodeWriter], limit: int
    ) -> np.ndarray:
        """Play one episode in each slot to its end; which succeeded, [n] bool."""
        count, dtype = len(episodes), cell.spaces.action.row_dtype
        succeeded, live = np.zeros(count, np.bool_), np.arange(count)
        for t in range(limit):
            actions = np.asarray(self._expert(seen), dtype=dtype)
            result = cell.step(actions, _retire, slots=live)
            after = dict(result.observation)
            for slot in live:
                success = None if result.success is None else bool(result.success[slot])
                episodes[slot].add(
                    {name: rows[slot] for name, rows in seen.items()},
                    actions[slot],
                    actions[slot],
                    reward=result.reward[slot],
                    terminated=bool(result.terminated[slot]),
                    truncated=bool(result.truncated[slot]),
                    success=success,
                )
                succeeded[slot] |= bool(success)
            over = succeeded | result.terminated | result.truncated | (t + 1 == limit)
            for slot in live[over[live]]:  # retired, so their observation stays the last one
                episodes[slot].finish({name: rows[slot] for name, rows in after.items()})
            live, seen = live[~over[live]], after
            if not live.size:
                break
        return succeeded


def _retire(slot: int) -> None:
    """No episode follows the one that ended."""


def _name(env: Any) -> str:
    return env if isinstance(env, str) else "demonstrations"
