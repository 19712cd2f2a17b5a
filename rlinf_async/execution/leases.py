"""Phase leases for coroutines: `async with leases.hold("train"):`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping

from rlinf_async.scheduling.leases import Lease, LeaseTable
from rlinf_async.tracing.waits import StageClock, Wait


class Leases:
    """Makes the coroutines of one loop wait for what `table` grants."""

    def __init__(self, table: LeaseTable) -> None:
        self._table = table
        self._turns: dict[int, asyncio.Future[None]] = {}

    @property
    def table(self) -> LeaseTable:
        """The leases held and waiting."""
        return self._table

    def rearrange(self, devices: Mapping[str, Collection[object]]) -> None:
        """As `LeaseTable.rearrange`; those who may go on are woken."""
        self._wake(self._table.rearrange(devices))

    @contextlib.asynccontextmanager
    async def hold(self, phase: str, *, clock: StageClock | None = None) -> AsyncIterator[Lease]:
        """Hold the devices of `phase` inside the block, after waiting for them.

        The wait is charged to `clock` as `devices` and names the phases in the way. A cancelled
        wait is withdrawn. Not reentrant: asking again inside the block can wait for ever.
        """
        lease = self._table.request(phase)
        try:
            if not self._table.is_held(lease):
                await self._wait(lease, clock)
            yield lease
        finally:
            self._wake(self._table.release(lease))

    async def _wait(self, lease: Lease, clock: StageClock | None) -> None:
        turn = self._turns[lease.number] = asyncio.get_running_loop().create_future()
        on = "+".join(self._table.blockers(lease))
        try:
            with contextlib.nullcontext() if clock is None else clock.waiting(Wait.DEVICES, on):
                await turn
        finally:
            del self._turns[lease.number]

    def _wake(self, granted: Iterable[Lease]) -> None:
        for lease in granted:
            # A waiter that was cancelled but has not run yet gives the lease back when it does.
            turn = self._turns.get(lease.number)
            if turn is not None and not turn.done():
                turn.set_result(None)
