"""Admission, staleness and accounting of segments, decided without a loop, a clock or a socket.

A segment is one cell over one horizon. Its life:

    admit -> running -> collected -> queued -> trained -> published (its batch is released)
                 \\________________________/
                    dropped: the same segment may be admitted again as the next attempt

Batch n, the segments n of all cells, is admitted when version max(first, n - k) is live. Version
v is live once batch v - 1 is trained and v is published, so while m is the newest version at most
the k + 1 batches m to m + k are in the ledger, and nothing older than k versions is trained on.

Segments are counted: admitted = queued + running + trained + dropped, after every event.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from rlinf_async.errors import BadInput, EngineError

Lag = Literal["exact", "free"]


class LedgerError(EngineError):
    """An event that the ledger's state does not allow: a bug of a caller, never of timing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right to collect one segment."""

    batch: int
    cell: int
    version: int
    """Exact lag: the version that acts in every step. Free lag: the oldest that may."""
    attempt: int = 0
    """How many times this segment was dropped before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Segments since the start; admitted = queued + running + trained + dropped."""

    admitted: int = 0
    queued: int = 0
    running: int = 0
    trained: int = 0
    dropped: int = 0


class Ledger:
    """One run's segments from admission to release; batches `first` to `iterations - 1`.

    `first` is the version that the run starts with: 0, or a checkpoint's.
    """

    def __init__(
        self,
        *,
        cells: int,
        iterations: int,
        max_lag: int,
        lag: Lag = "exact",
        first: int = 0,
    ) -> None:
        for name, value, least in (
            ("cells", cells, 1),
            ("first", first, 0),
            ("iterations", iterations, first),
            ("max_lag", max_lag, 0),
        ):
            if value < least:
                raise BadInput("ledger", f"{name} is too small", expected=f">= {least}", got=value)
        if lag not in ("exact", "free"):
            raise BadInput("ledger", "unknown lag", expected="exact or free", got=lag)
        self.cells, self.iterations = cells, iterations
        self.max_lag, self.lag, self.first = max_lag, lag, first
        self.newest = first
        """The newest live version; as many batches are trained and published."""
        self.counts = Counts()
        self.drop_reasons: Counter[str] = Counter()
        self._trained = first  # batches below this one are trained; newest or newest + 1
        self._running: dict[int, Ticket] = {}  # by cell
        self._queued: dict[int, dict[int, Ticket]] = {}  # by batch and cell, until released
        self._attempts: Counter[tuple[int, int]] = Counter()  # by batch and cell

    @property
    def finished(self) -> bool:
        """Whether the last version is live."""
        return self.newest == self.iterations

    def acting_version(self, batch: int) -> int:
        """The version that must be live before `batch` is admitted; the acting one if exact."""
        return max(self.first, batch - self.max_lag)

    def admissible(self, cell: int) -> Ticket | None:
        """What `admit(cell)` would return now; None if it would raise."""
        return None if self.blocked_by(cell) else self._next_ticket(cell)

    def blocked_by(self, cell: int) -> Literal["", "running", "weights", "finished"]:
        """Why `cell` may begin nothing now (`finished`: nothing is left for it); "" if it may."""
        self._check_cell(cell)
        if cell in self._running:
            return "running"
        batch = self._next_batch(cell)
        if batch >= self.iterations:
            return "finished"
        return "weights" if self.acting_version(batch) > self.newest else ""

    def admit(self, cell: int) -> Ticket:
        """Begin the cell's next segment; LedgerError says why it may not begin."""
        blocked = self.blocked_by(cell)
        batch = self._next_batch(cell)
        if blocked == "running":
            raise LedgerError(f"cell {cell} is still running {_name(self._running[cell])}")
        if blocked == "finished":
            raise LedgerError(f"cell {cell} has finished all {self.iterations} batches")
        if blocked == "weights":
            raise LedgerError(
                f"batch {batch} of cell {cell} needs version {self.acting_version(batch)}; "
                f"the newest live version is {self.newest}"
            )
        ticket = self._next_ticket(cell)
        self._running[cell] = ticket
        self._count(admitted=1, running=1)
        return ticket

    def collected(self, ticket: Ticket) -> None:
        """The segment is complete in its row and waits for its batch."""
        self._end_running(ticket)
        self._queued.setdefault(ticket.batch, {})[ticket.cell] = ticket
        self._count(running=-1, queued=1)

    def dropped(self, ticket: Ticket, reason: str) -> None:
        """The segment is lost, running or queued; it becomes the cell's next one, attempt + 1."""
        queued = self._queued.get(ticket.batch, {})
        if ticket.batch >= self._trained and queued.get(ticket.cell) == ticket:
            del queued[ticket.cell]
            self._count(queued=-1, dropped=1)
        else:
            self._end_running(ticket)
            self._count(running=-1, dropped=1)
        self._attempts[ticket.batch, ticket.cell] += 1
        self.drop_reasons[reason] += 1

    def ready_batch(self) -> int | None:
        """The batch that `trained` accepts next; None until all its cells are collected."""
        batch = self._trained
        complete = len(self._queued.get(batch, ())) == self.cells
        return batch if complete and self.newest == batch else None

    def tickets(self, batch: int) -> tuple[Ticket, ...]:
        """The collected segments of a batch that is not released yet, in cell order."""
        queued = self._queued.get(batch, {})
        return tuple(queued[cell] for cell in sorted(queued))

    def trained(self, batch: int) -> None:
        """All segments of `batch` were consumed; strictly in order, after the version `batch`."""
        if batch != self._trained:
            raise LedgerError(f"batch {batch} was trained out of order, expected {self._trained}")
        if self.newest != batch:
            raise LedgerError(
                f"batch {batch} was trained before version {batch} was published; "
                f"call publish() once after each train()"
            )
        missing = [cell for cell in range(self.cells) if cell not in self._queued.get(batch, {})]
        if missing:
            raise LedgerError(f"batch {batch} was trained without its cells {missing}")
        self._trained += 1
        self._count(queued=-self.cells, trained=self.cells)

    def published(self, version: int) -> None:
        """`version` is live: releases batch `version` - 1, which must be the last one trained."""
        if version <= self.newest:
            raise LedgerError(f"version {version} was published twice; {self.newest} is live")
        if version != self._trained:
            raise LedgerError(
                f"version {version} was published, but the next one is {self.newest + 1}, "
                f"after batch {self.newest} is trained"
            )
        batch = version - 1
        del self._queued[batch]
        for cell in range(self.cells):
            self._attempts.pop((batch, cell), None)
        self.newest = version

    def live_versions(self) -> frozenset[int]:
        """Published versions whose weights must be kept; any other may be overwritten.

        The newest always. Exact: also each version that acts in a batch not trained yet, admitted
        or still to be. Free: also every version from the oldest that a segment in the ledger began
        with, because a running segment moves through them. With m the newest, these lie within
        {m - k, .., m}; when version m + 1 is about to be written, batch m is trained and m - k is
        needed no more, so with the new one there are never more than max(2, k + 1).
        """
        if self.lag == "exact":
            waiting = range(self._trained, self.iterations)
            needed = {self.acting_version(batch) for batch in waiting[: self.max_lag + 1]}
            return frozenset({self.newest} | {v for v in needed if v <= self.newest})
        return frozenset(range(min(self._versions_in_use(), default=self.newest), self.newest + 1))

    def batches(self) -> tuple[int, ...]:
        """The batches in the ledger: any segment admitted, weights that follow not yet live."""
        collected = {batch for batch, cells in self._queued.items() if cells}
        return tuple(sorted(collected | {ticket.batch for ticket in self._running.values()}))

    def lags_of(self, batch: int) -> tuple[int, ...]:
        """Versions that each collected segment is old when trained on, in cell order."""
        return tuple(batch - ticket.version for ticket in self.tickets(batch))

    def lag_of(self, batch: int) -> int:
        """The oldest segment's lag; under exact lag min(k, batch - first) for every segment."""
        if self.lag == "exact":
            return batch - self.acting_version(batch)
        return max(self.lags_of(batch), default=0)

    def _next_batch(self, cell: int) -> int:
        """The oldest batch of which the cell has no segment, running or collected."""
        running = self._running.get(cell)
        batch = self._trained
        while cell in self._queued.get(batch, {}) or (running and running.batch == batch):
            batch += 1
        return batch

    def _next_ticket(self, cell: int) -> Ticket:
        batch = self._next_batch(cell)
        return Ticket(
            batch=batch,
            cell=cell,
            version=self.newest if self.lag == "free" else self.acting_version(batch),
            attempt=self._attempts[batch, cell],
        )

    def _versions_in_use(self) -> set[int]:
        queued = (self._queued.get(batch, {}) for batch in self._queued if batch >= self._trained)
        in_queue = {ticket.version for cells in queued for ticket in cells.values()}
        return in_queue | {ticket.version for ticket in self._running.values()}

    def _end_running(self, ticket: Ticket) -> None:
        if self._running.get(ticket.cell) != ticket:
            raise LedgerError(f"{_name(ticket)} is not running; it ended before or never began")
        del self._running[ticket.cell]

    def _check_cell(self, cell: int) -> None:
        if not 0 <= cell < self.cells:
            raise LedgerError(f"there is no cell {cell}; cells are 0 to {self.cells - 1}")

    def _count(self, **changes: int) -> None:
        now = {name: getattr(self.counts, name) + change for name, change in changes.items()}
        self.counts = replace(self.counts, **now)


def _name(ticket: Ticket) -> str:
    attempt = f" (attempt {ticket.attempt})" if ticket.attempt else ""
    return f"segment {ticket.batch} of cell {ticket.cell}{attempt}"
