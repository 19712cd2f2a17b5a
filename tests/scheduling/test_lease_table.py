"""Phase leases: exclusion, fair turns, no request forgotten."""

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
from rlinf_async.scheduling.leases import Lease, LeaseTable


def test_leases_of_one_phase_are_held_together():
    table = LeaseTable.alternating("rollout", "train")
    first, second = table.request("rollout"), table.request("rollout")
    assert table.is_held(first)
    assert table.is_held(second)


def test_a_waiting_phase_blocks_new_leases_of_the_running_one():
    table = LeaseTable.alternating("rollout", "train")
    running = table.request("rollout")
    train = table.request("train")
    late = table.request("rollout")
    assert table.waiting == (train, late)
    assert table.blockers(train) == ("rollout",)
    assert table.blockers(late) == ("train",)
    assert table.release(running) == [train]
    assert table.release(train) == [late]


def test_a_turn_takes_in_all_requests_of_its_phase_that_wait():
    table = LeaseTable.alternating("rollout", "train")
    train = table.request("train")
    first, again, second = (table.request(phase) for phase in ("rollout", "train", "rollout"))
    assert table.release(train) == [first, second]
    assert table.release(first) == []
    assert table.release(second) == [again]


def test_phases_without_a_common_device_do_not_wait_for_each_other():
    table = LeaseTable({"render": {"cpu"}, "rollout": {"gpu"}, "train": {"gpu"}})
    assert all(table.is_held(table.request(phase)) for phase in ("train", "render", "render"))
    assert not table.is_held(table.request("rollout"))


def test_withdrawing_a_waiting_request_lets_those_behind_it_go():
    table = LeaseTable.alternating("rollout", "train")
    table.request("rollout")
    train, late = table.request("train"), table.request("rollout")
    assert table.release(train) == [late]


def test_an_unknown_phase_and_a_double_release_are_refused():
    table = LeaseTable.alternating("rollout", "train")
    with pytest.raises(BadInput, match="did you mean 'train'"):
        table.request("trian")
    lease = table.request("train")
    table.release(lease)
    with pytest.raises(EngineError, match="released twice"):
        table.release(lease)


DEVICES = st.dictionaries(
    st.sampled_from(["render", "rollout", "train", "reward"]),
    st.sets(st.integers(0, 2), min_size=1),
    min_size=1,
)


class LeaseMachine(RuleBasedStateMachine):
    """Requests, releases and withdrawals in any order on any sharing of devices."""

    @initialize(devices=DEVICES)
    def begin(self, devices: dict[str, set[int]]) -> None:
        self.devices = devices
        self.table = LeaseTable(devices)

    def rivals(self, one: Lease, two: Lease) -> bool:
        return one.phase != two.phase and bool(self.devices[one.phase] & self.devices[two.phase])

    @rule(pick=st.integers(0, 99))
    def request(self, pick: int) -> None:
        lease = self.table.request(sorted(self.devices)[pick % len(self.devices)])
        present = (*self.table.held, *(w for w in self.table.waiting if w != lease))
        free = not any(self.rivals(lease, other) for other in present)
        assert self.table.is_held(lease) == free

    @precondition(lambda self: self.table.held)
    @rule(pick=st.integers(0, 99))
    def release(self, pick: int) -> None:
        self.give_back(self.table.held[pick % len(self.table.held)])

    @precondition(lambda self: self.table.waiting)
    @rule(pick=st.integers(0, 99))
    def withdraw(self, pick: int) -> None:
        self.give_back(self.table.waiting[pick % len(self.table.waiting)])

    @rule(shares=st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=4, max_size=4))
    def rearrange(self, shares: list[set[int]]) -> None:
        """Other devices: refused where phases at work would clash; nobody loses a lease."""
        before, kept = self.devices, set(self.table.held)
        self.devices = dict(zip(sorted(before), shares, strict=False))
        if any(self.rivals(one, two) for one in kept for two in kept):
            with pytest.raises(EngineError, match="would have to share"):
                self.table.rearrange(self.devices)
            self.devices = before
            return
        granted = self.table.rearrange(self.devices)
        assert set(self.table.held) == kept | set(granted)

    def give_back(self, lease: Lease) -> None:
        held = set(self.table.held)
        granted = self.table.release(lease)
        assert set(self.table.held) == (held - {lease}) | set(granted)
        for new in granted:
            head = min(each.number for each in granted if each.phase == new.phase)
            overtaken = [w for w in self.table.waiting if self.rivals(new, w) and w.number < head]
            assert not overtaken, f"{new} overtook {overtaken}"

    @invariant()
    def no_two_phases_hold_one_device(self) -> None:
        held = self.table.held
        assert not any(self.rivals(one, two) for one in held for two in held)

    @invariant()
    def whoever_waits_waits_for_somebody(self) -> None:
        for lease in self.table.waiting:
            ahead = [w for w in self.table.waiting if w.number < lease.number]
            assert any(self.rivals(lease, other) for other in (*self.table.held, *ahead))
            assert self.table.blockers(lease)

    def teardown(self) -> None:
        """Everyone gets a turn even if every turn is asked for again at once."""
        if not hasattr(self, "table"):
            return
        present = set(self.table.waiting)
        everyone = len(present) + len(self.table.held)  # each round over them serves one at least
        for _ in range(everyone * (len(present) + 1)):
            if present.isdisjoint(self.table.waiting):
                break
            lease = self.table.held[0]
            self.give_back(lease)
            self.table.request(lease.phase)
        assert present.isdisjoint(self.table.waiting)


LeaseMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeaseInterleavings = LeaseMachine.TestCase
