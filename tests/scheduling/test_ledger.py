"""The ledger: admission, staleness, conservation and the versions that must be kept."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rlinf_async.errors import BadInput, EngineError
from rlinf_async.scheduling.ledger import Counts, Ledger, LedgerError, Ticket


def collect_all(ledger: Ledger, batch: int) -> None:
    for cell in range(ledger.cells):
        ticket = ledger.admit(cell)
        assert ticket.batch == batch
        ledger.collected(ticket)


def test_on_policy_batches_alternate_with_versions():
    ledger = Ledger(cells=2, iterations=2, max_lag=0)
    for batch in range(2):
        assert ledger.ready_batch() is None
        collect_all(ledger, batch)
        assert ledger.blocked_by(0) == ("weights" if batch == 0 else "finished")
        assert ledger.ready_batch() == batch
        ledger.trained(batch)
        ledger.published(batch + 1)
    assert ledger.finished
    assert ledger.counts == Counts(admitted=4, trained=4)


def test_lag_lets_a_fast_cell_go_ahead_of_a_slow_one():
    ledger = Ledger(cells=2, iterations=10, max_lag=2)
    for batch in range(3):
        ledger.collected(ledger.admit(0))
        assert ledger.lag_of(batch) == batch
    assert ledger.blocked_by(0) == "weights"
    assert ledger.admissible(1) == Ticket(batch=0, cell=1, version=0)
    assert ledger.batches() == (0, 1, 2)
    ledger.collected(ledger.admit(1))
    ledger.trained(0)
    ledger.published(1)
    assert ledger.admissible(0) == Ticket(batch=3, cell=0, version=1)


def test_a_dropped_segment_is_admitted_again_as_the_next_attempt():
    ledger = Ledger(cells=1, iterations=3, max_lag=1)
    first = ledger.admit(0)
    ledger.dropped(first, "host lost")
    again = ledger.admit(0)
    assert (again.batch, again.version, again.attempt) == (0, 0, 1)
    with pytest.raises(LedgerError, match="not running"):
        ledger.collected(first)
    ledger.collected(again)
    ahead = ledger.admit(0)
    ledger.dropped(again, "row lost")  # queued, while the cell runs the next segment
    with pytest.raises(LedgerError, match="still running segment 1 of cell 0"):
        ledger.admit(0)
    ledger.collected(ahead)
    third = ledger.admit(0)
    assert (third.batch, third.attempt) == (0, 2)
    assert ledger.drop_reasons == {"host lost": 1, "row lost": 1}
    assert ledger.counts == Counts(admitted=4, queued=1, running=1, dropped=2)


def test_free_lag_takes_the_newest_version_at_admission():
    ledger = Ledger(cells=2, iterations=9, max_lag=2, lag="free")
    collect_all(ledger, 0)
    slow = ledger.admit(0)
    assert slow.version == 0
    ledger.trained(0)
    ledger.published(1)
    fast = ledger.admit(1)
    assert (fast.batch, fast.version) == (1, 1)
    ledger.collected(slow)
    ledger.collected(fast)
    assert ledger.lags_of(1) == (1, 0)
    assert ledger.lag_of(1) == 1
    assert ledger.tickets(1) == (slow, fast)


def test_free_lag_keeps_every_version_that_a_running_segment_may_still_use():
    ledger = Ledger(cells=1, iterations=9, max_lag=3, lag="free")
    collect_all(ledger, 0)
    collect_all(ledger, 1)
    ledger.admit(0)
    for batch in range(2):
        ledger.trained(batch)
        ledger.published(batch + 1)
    assert ledger.live_versions() == {0, 1, 2}


def test_the_last_batches_keep_only_the_versions_they_need():
    ledger = Ledger(cells=1, iterations=5, max_lag=3)
    for batch in range(4):
        collect_all(ledger, batch)
        ledger.trained(batch)
        ledger.published(batch + 1)
    assert ledger.live_versions() == {1, 4}


def test_a_resumed_run_starts_at_its_own_version():
    ledger = Ledger(cells=1, iterations=7, max_lag=1, first=5)
    assert ledger.live_versions() == {5}
    tickets = [ledger.admit(0)]
    ledger.collected(tickets[0])
    tickets.append(ledger.admit(0))
    assert [(t.batch, t.version) for t in tickets] == [(5, 5), (6, 5)]
    ledger.trained(5)
    ledger.published(6)


def test_training_has_an_order_and_needs_every_cell():
    ledger = Ledger(cells=2, iterations=4, max_lag=2)
    ledger.collected(ledger.admit(0))
    with pytest.raises(LedgerError, match=r"without its cells \[1\]"):
        ledger.trained(0)
    ledger.collected(ledger.admit(1))
    with pytest.raises(LedgerError, match="out of order, expected 0"):
        ledger.trained(1)
    ledger.trained(0)
    collect_all(ledger, 1)
    assert ledger.ready_batch() is None
    with pytest.raises(LedgerError, match="before version 1 was published"):
        ledger.trained(1)


def test_a_version_is_published_exactly_once_after_its_batch():
    ledger = Ledger(cells=1, iterations=4, max_lag=1)
    with pytest.raises(LedgerError, match="after batch 0 is trained"):
        ledger.published(1)
    collect_all(ledger, 0)
    ledger.trained(0)
    with pytest.raises(LedgerError, match="next one is 1"):
        ledger.published(2)
    ledger.published(1)
    with pytest.raises(LedgerError, match="twice"):
        ledger.published(1)


def test_a_trained_segment_cannot_be_dropped():
    ledger = Ledger(cells=1, iterations=2, max_lag=0)
    ticket = ledger.admit(0)
    ledger.collected(ticket)
    ledger.trained(0)
    with pytest.raises(LedgerError, match="segment 0 of cell 0 is not running"):
        ledger.dropped(ticket, "late")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cells": 0}, "cells is too small"),
        ({"max_lag": -1}, "max_lag is too small"),
        ({"iterations": 2, "first": 3}, "iterations is too small"),
        ({"lag": "loose"}, "unknown lag"),
    ],
)
def test_configurations_that_cannot_work_are_refused(wrong, text):
    with pytest.raises(BadInput, match=text):
        Ledger(**{"cells": 1, "iterations": 3, "max_lag": 0, **wrong})


def test_an_unknown_cell_is_refused():
    ledger = Ledger(cells=2, iterations=1, max_lag=0)
    with pytest.raises(EngineError, match="no cell 2; cells are 0 to 1"):
        ledger.admit(2)


class LedgerMachine(RuleBasedStateMachine):
    """Cells, trainer and drops in any order, with a ring that frees what the ledger lets it."""

    @initialize(
        cells=st.integers(1, 4),
        iterations=st.integers(1, 7),
        max_lag=st.integers(0, 4),
        lag=st.sampled_from(["exact", "free"]),
        first=st.integers(0, 2),
    )
    def begin(self, cells: int, iterations: int, max_lag: int, lag: str, first: int) -> None:
        self.ledger = Ledger(
            cells=cells, iterations=first + iterations, max_lag=max_lag, lag=lag, first=first
        )
        self.running: dict[int, Ticket] = {}
        self.queued: dict[tuple[int, int], Ticket] = {}
        self.ring = {first}
        self.trained = first
        self.published = [first]
        self.dropped = 0

    @rule(pick=st.integers(0, 99))
    def admit(self, pick: int) -> None:
        ledger, cell = self.ledger, pick % self.ledger.cells
        expected = ledger.admissible(cell)
        if expected is None:
            before = ledger.counts
            with pytest.raises(LedgerError):
                ledger.admit(cell)
            assert ledger.counts == before
            return
        ticket = ledger.admit(cell)
        assert ticket == expected
        assert ticket.batch < ledger.iterations
        assert cell not in self.running
        assert ticket.batch - ledger.max_lag <= ticket.version <= ledger.newest
        if ledger.lag == "exact":
            assert ticket.version == max(ledger.first, ticket.batch - ledger.max_lag)
        for before_it in range(self.trained, ticket.batch):
            assert (before_it, cell) in self.queued
        self.running[cell] = ticket

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99))
    def collect(self, pick: int) -> None:
        ticket = self.running.pop(sorted(self.running)[pick % len(self.running)])
        self.ledger.collected(ticket)
        self.queued[ticket.batch, ticket.cell] = ticket

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99))
    def lose_a_running_segment(self, pick: int) -> None:
        ticket = self.running.pop(sorted(self.running)[pick % len(self.running)])
        self.ledger.dropped(ticket, "running")
        self.dropped += 1

    @precondition(lambda self: any(batch >= self.trained for batch, _ in self.queued))
    @rule(pick=st.integers(0, 99))
    def lose_a_queued_segment(self, pick: int) -> None:
        keys = sorted(key for key in self.queued if key[0] >= self.trained)
        self.ledger.dropped(self.queued.pop(keys[pick % len(keys)]), "queued")
        self.dropped += 1

    @rule()
    def train(self) -> None:
        batch = self.ledger.ready_batch()
        if batch is None:
            with pytest.raises(LedgerError):
                self.ledger.trained(self.trained)
            return
        assert batch == self.trained
        tickets = self.ledger.tickets(batch)
        assert [t.cell for t in tickets] == list(range(self.ledger.cells))
        assert all(0 <= batch - t.version <= self.ledger.max_lag for t in tickets)
        assert self.ledger.lag_of(batch) == max(self.ledger.lags_of(batch))
        self.ledger.trained(batch)
        self.trained += 1

    @rule()
    def publish(self) -> None:
        version = self.ledger.newest + 1
        if version != self.trained:
            with pytest.raises(LedgerError):
                self.ledger.published(version)
            return
        self.ring &= self.ledger.live_versions()
        self.ring.add(version)  # written before it is announced
        assert len(self.ring) <= max(2, self.ledger.max_lag + 1)
        assert self.ledger.published(version) is None
        self.published.append(version)
        for key in [key for key in self.queued if key[0] < version]:
            del self.queued[key]

    @rule()
    def free_versions(self) -> None:
        self.ring &= self.ledger.live_versions()

    @invariant()
    def segments_are_conserved(self) -> None:
        counts = self.ledger.counts
        assert counts.admitted == (counts.queued + counts.running + counts.trained + counts.dropped)
        assert counts.running == len(self.running)
        assert counts.queued == sum(batch >= self.trained for batch, _ in self.queued)
        assert counts.trained == (self.trained - self.ledger.first) * self.ledger.cells
        assert counts.dropped == self.dropped == self.ledger.drop_reasons.total()

    @invariant()
    def at_most_k_plus_one_batches_are_held(self) -> None:
        batches = self.ledger.batches()
        assert len(batches) <= self.ledger.max_lag + 1
        newest = self.ledger.newest
        assert all(newest <= batch <= newest + self.ledger.max_lag for batch in batches)

    @invariant()
    def every_version_is_published_once(self) -> None:
        assert self.published == list(range(self.ledger.first, self.ledger.newest + 1))

    @invariant()
    def the_ring_holds_what_acts(self) -> None:
        live = self.ledger.live_versions()
        assert live <= self.ring
        assert self.ledger.newest in live
        cells = range(self.ledger.cells)
        beginning = [t for t in map(self.ledger.admissible, cells) if t is not None]
        assert {ticket.version for ticket in (*self.running.values(), *beginning)} <= live

    @invariant()
    def something_is_always_possible_until_the_end(self) -> None:
        ledger = self.ledger
        possible = (
            self.running
            or ledger.ready_batch() is not None
            or self.trained > ledger.newest
            or any(ledger.admissible(cell) for cell in range(ledger.cells))
        )
        assert bool(possible) != ledger.finished

    def teardown(self) -> None:
        """From any state, the run can still be brought to its end."""
        if not hasattr(self, "ledger"):
            return
        while not self.ledger.finished:
            for cell in range(self.ledger.cells):
                self.admit(cell)
            while self.running:
                self.collect(0)
            self.train()
            self.publish()
            self.segments_are_conserved()
        assert self.ledger.counts.queued == self.ledger.counts.running == 0


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestLedgerInterleavings = LedgerMachine.TestCase
