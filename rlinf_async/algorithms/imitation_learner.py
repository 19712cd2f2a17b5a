"""The torch learner for behaviour cloning and DAgger: what is imitated is a set that can grow.

Axes: N entries. The set is what a recording holds, and of the last `keep` batches everything. Raw
observations are kept, and seen with the statistics of the version that is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.losses import CloningLoss
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.torch_learner import TorchLearner
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces

Array = npt.NDArray[Any]
Entries = dict[str, Array]

STATE = "imitation/"
_OBSERVATION = "obs/"


class ImitationLearner(TorchLearner):
    """Trains a policy to act as a set of entries says; see `Learner` and the module."""

    def __init__(self, policy: Any, *, spaces: Spaces, loss: CloningLoss, **arguments: Any) -> None:
        super().__init__(policy, loss=loss, **arguments)
        self._keep = loss.keep
        self._names = [spec.name for spec in spaces.observation]
        self._batches: list[Entries] = []
        self._demonstrations: Entries | None = None
        if loss.demonstrations is not None:
            self._demonstrations = read_demonstrations(loss.demonstrations, spaces)

    def update(
        self,
        batch: Mapping[str, Array],
        *,
        statistics: Statistics,
        scales: Mapping[int, float],
        version: int,
        seed: int,
    ) -> dict[str, float]:
        """One iteration over the whole set; see `Learner.update`."""
        if self._keep:
            self._batches = [*self._batches, self._entries_of(batch)][-self._keep :]
        entries = self._imitated(statistics)
        self.begin(version / self._iterations)
        metrics = self._run_epochs(entries, seed=seed, version=version)
        return {**metrics, "imitated_entries": float(len(entries["action"]))}

    def state(self) -> dict[str, Array]:
        """As `TorchLearner.state`, with the batches that are kept."""
        state = super().state()
        if self._batches:
            sizes = [len(entries["action"]) for entries in self._batches]
            state[f"{STATE}sizes"] = np.array(sizes, dtype=np.int64)
            state |= {STATE + name: rows for name, rows in _joined(self._batches).items()}
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        super().restore(state)
        kept = {n.removeprefix(STATE): rows for n, rows in state.items() if n.startswith(STATE)}
        sizes = kept.pop("sizes", np.zeros(0, np.int64))
        edges = np.cumsum(sizes)[:-1]
        parts = {name: np.split(rows, edges) for name, rows in kept.items()}
        self._batches = [
            {name: rows[number].copy() for name, rows in parts.items()}
            for number in range(len(sizes))
        ]

    def _entries_of(self, batch: Mapping[str, Array]) -> Entries:
        """Copies of a batch's observations and actions, one entry after the other."""
        horizon = len(batch["action"])
        kept = {_OBSERVATION + n: batch[_OBSERVATION + n][:horizon] for n in self._names}
        kept |= {name: batch[name] for name in ("action", "executed") if name in batch}
        return {name: rows.reshape(-1, *rows.shape[2:]).copy() for name, rows in kept.items()}

    def _imitated(self, statistics: Statistics) -> Entries:
        """The set as the policy sees it now, [N, ...]."""
        shown = [] if self._demonstrations is None else [self._demonstrations]
        entries = _joined([*shown, *self._batches])
        raw = {name: entries[_OBSERVATION + name] for name in self._names}
        seen = self._prepare.normalize(raw, statistics)
        entries |= {_OBSERVATION + name: rows for name, rows in seen.items()}
        # Nothing is compared with log-probs, but they tell how many entries there are.
        entries["logp"] = np.zeros(len(entries["action"]), dtype=np.float32)
        return entries


def read_demonstrations(folder: str, spaces: Spaces) -> Entries:
    """All steps of a recording's episodes, by the names of a mini-batch.

    Raises BadInput where the recording is empty or lacks what the policy sees or does.
    """
    from rlinf_async.recording.reader import Recording

    recording = Recording(folder)
    _check_recording(recording, spaces)
    parts: list[Entries] = []
    for episode in recording:
        steps = episode.steps
        entries = {
            _OBSERVATION + spec.name: episode.observations(spec.name)[:-1]
            for spec in spaces.observation
        }
        entries["action"] = np.array(steps["action"])
        if spaces.chunk > 1:
            entries["executed"] = np.array(steps["executed"], dtype=np.int64)
        parts.append(entries)
    return _joined(parts)


def _joined(parts: list[Entries]) -> Entries:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _check_recording(recording: Any, spaces: Spaces) -> None:
    who = f"recording {recording.folder}"
    if not len(recording):
        raise BadInput(who, "has no complete episode")
    there = {spec.name: (spec.shape, spec.dtype) for spec in recording.spaces.observation}
    for spec in spaces.observation:
        if there.get(spec.name) != (spec.shape, spec.dtype):
            raise BadInput(
                who,
                f"observation {spec.name!r} is not what the policy sees",
                expected=f"{spec.dtype} {list(spec.shape)}",
                got=there.get(spec.name, f"only {', '.join(there)}"),
            )
    here, got = spaces.action, recording.spaces.action
    if (here.kind, here.shape) != (got.kind, got.shape):
        raise BadInput(
            who,
            "its actions are of another space",
            expected=f"{here.kind} {list(here.shape)}",
            got=f"{got.kind} {list(got.shape)}",
        )
