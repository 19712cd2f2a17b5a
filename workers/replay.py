"""The replay worker: owns the shared memory that steps are remembered in, beside the learner."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlinf_async.algorithms.off_policy.demonstrations import demonstration_store
from rlinf_async.algorithms.off_policy.records import Replay
from rlinf_async.algorithms.off_policy.sampling import Memory, PrioritisedSampler, UniformSampler
from rlinf_async.algorithms.off_policy.store import Store, store_fields
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import rebuild
from rlinf_async.execution.spaces import Spaces
from rlinf_async.execution.worker import Worker, WorkerContext

FILE = "replay.npz"
"""Of a checkpoint, where it holds what is remembered."""
SMALLEST_RING = 4
"""Entries of a slot's ring below which nothing could ever be sampled."""


class ReplayWorker(Worker):
    """Remembers steps in a row pool of one row; the learner of this host is its one writer.

    Waits for:    nothing; it is used by reference.
    """

    def __init__(
        self, context: WorkerContext, *, spaces: dict[str, Any], slots: int, replay: Any
    ) -> None:
        super().__init__(context)
        record = rebuild(replay, where="pipe.update(replay)")
        if not isinstance(record, Replay):
            raise BadInput("pipe.update", "replay", expected="Replay(...)", got=repr(record))
        parsed = Spaces.from_json(spaces)
        self.n_step, self.saved = record.n_step, record.saved
        length = max(SMALLEST_RING, math.ceil(record.capacity / slots))
        fields = store_fields(parsed, slots=slots, length=length if record.online else 2)
        self._pool = RowPool.create("replay", fields, 1)
        store = Store(self._pool.row(0))
        sampler: UniformSampler | PrioritisedSampler = UniformSampler(store)
        if record.prioritised is not None:
            sampler = PrioritisedSampler(store, alpha=record.prioritised, beta=record.beta)
        shown, share = None, 0.0
        if record.demonstrations is not None:
            shown, share = demonstration_store(record.demonstrations, parsed), 1.0
            share = record.demonstrations.share
        self.memory = Memory(sampler, demonstrations=shown, share=share, online=record.online)
        self._shown = shown

    def describe(self) -> dict[str, Any]:
        """Bytes and entries, and what another process needs to attach to the memory."""
        return {
            "bytes": self._pool.descriptor.total_bytes,
            "entries": self.memory.store.slots * self.memory.store.length,
            "demonstration_steps": 0 if self._shown is None else len(self._shown),
            "pool": self._pool.descriptor.to_json(),
        }

    def save(self, folder: Path) -> None:
        """Write all that is remembered, priorities included, into a checkpoint's folder."""
        self.memory.save(folder / FILE)

    def restore(self, folder: Path) -> bool:
        """The inverse of `save`; False where the checkpoint holds no replay."""
        if not (folder / FILE).exists():
            return False
        self.memory.restore(folder / FILE)
        return True

    def close(self) -> None:
        """Let go of the memory."""
        self._pool.close()
