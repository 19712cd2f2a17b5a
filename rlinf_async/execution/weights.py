"""The ring of weights versions in shared memory as the controller keeps it: numbers only."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from rlinf_async.communication.fields import Field
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import EngineError
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.hosts import Host
from rlinf_async.tracing.waits import StageClock, Wait


def ring_rows(max_lag: int) -> int:
    """Versions that must fit: those that admitted batches act with, and the one being written."""
    return max(2, max_lag + 2)


class WeightRing:
    """Which row holds which version, and who has acknowledged it.

    A row is free for a new version when no batch in the ledger needs the one that it holds.
    """

    def __init__(
        self, pool: RowPool, admission: Admission, receivers: Sequence[Host], deadline_s: float
    ) -> None:
        self._pool, self._admission = pool, admission
        self._receivers, self._deadline_s = receivers, deadline_s
        self._row_of: dict[int, int] = {}
        self._kept: Counter[int] = Counter()
        self.sent_count = 0
        """Transfers of all versions to all receivers; exactly one each."""

    def first_row(self) -> int:
        """The row for version 0."""
        return self._pool.take()

    async def free_row(self, clock: StageClock) -> int:
        """A row that the next version may be written to; waits until there is one."""
        while True:
            self._release()
            if self._pool.free_count:
                return self._pool.take()
            with clock.waiting(Wait.WEIGHTS, on="rollout"):
                await self._admission.changed()

    @contextlib.contextmanager
    def keep(self, version: int) -> Iterator[int]:
        """The row of a live version, which is not written to within the block."""
        self._kept[version] += 1
        try:
            yield self._row_of[version]
        finally:
            self._kept[version] -= 1
            # A train step may wait for this row.
            self._admission.wake()

    async def publish(self, version: int, row: int) -> None:
        """Tell every receiver that `version` lies in `row` and wait for all acknowledgements."""
        self._row_of[version] = row
        async with asyncio.TaskGroup() as group:
            for host in self._receivers:
                group.create_task(self._tell(host, version, row), name=f"publish-{host.name}")

    async def _tell(self, host: Host, version: int, row: int) -> None:
        arguments = {"version": version, "row": row}
        self.sent_count += 1
        applied = await host.call("rollout", "adopt", arguments, deadline_s=self._deadline_s)
        if applied != version:
            raise EngineError(f"{host.name} acknowledged version {applied} instead of {version}")

    def _release(self) -> None:
        live = self._admission.ledger.live_versions() | {v for v, n in self._kept.items() if n}
        for version in [v for v in self._row_of if v not in live]:
            self._pool.give(self._row_of.pop(version))


def weights_fields(described: Sequence[tuple[str, Sequence[int], str]]) -> list[Field]:
    """The fields of a weights row from what the train worker described."""
    return [Field(name=n, shape=tuple(s), dtype=d) for n, s, d in described]
