"""The async shell of the ledger: whoever must wait for an event of it, waits here."""

from __future__ import annotations

import asyncio

from rlinf_async.scheduling.ledger import Ledger, Ticket


class Admission:
    """Tells waiters whenever the ledger has changed; all changes go through here."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next event of the ledger."""
        await self._changed.wait()

    def admit(self, cell: int) -> Ticket | None:
        """The cell's next ticket, or None if it must wait (see `Ledger.blocked_by`)."""
        if self.ledger.blocked_by(cell):
            return None
        ticket = self.ledger.admit(cell)
        self._tell()
        return ticket

    def collected(self, ticket: Ticket) -> None:
        """As `Ledger.collected`."""
        self.ledger.collected(ticket)
        self._tell()

    def trained(self, batch: int) -> None:
        """As `Ledger.trained`."""
        self.ledger.trained(batch)
        self._tell()

    def published(self, version: int) -> None:
        """As `Ledger.published`."""
        self.ledger.published(version)
        self._tell()

    def wake(self) -> None:
        """Let those who wait look again: something else than the ledger has changed."""
        self._tell()

    def _tell(self) -> None:
        # Those who wait now wake up; whoever waits later, waits for the next event.
        self._changed.set()
        self._changed = asyncio.Event()
