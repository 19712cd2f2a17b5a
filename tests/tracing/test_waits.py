"""Wait attribution: every nanosecond in exactly one state."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.tracing.waits import StageClock, Wait
from tests.fixtures.clock import FakeClock

STATES = st.sampled_from([str(state) for state in Wait])


def test_a_nested_wait_returns_to_the_previous_state():
    time = FakeClock()
    clock = StageClock("train", time.now_ns)
    time.tick_ns(1)
    with clock.waiting("input", on="batches"):
        time.tick_ns(10)
        with clock.waiting(Wait.PAUSED):
            assert clock.state == "paused"
            time.tick_ns(100)
        assert (clock.state, clock.waiting_on) == ("input", "batches")
        with clock.working():
            time.tick_ns(1_000)
        time.tick_ns(10_000)
    assert clock.state is Wait.WORKING
    totals = clock.totals_ns()
    assert totals == {
        "working": 1_001,
        "input": 10_010,
        "paused": 100,
        "space": 0,
        "weights": 0,
        "devices": 0,
    }


def test_a_wait_ended_by_an_exception_is_left():
    clock = StageClock("train", FakeClock().now_ns)
    with pytest.raises(ZeroDivisionError), clock.waiting("space"):
        _ = 1 / 0
    assert clock.state is Wait.WORKING


def test_an_open_wait_counts_up_to_now():
    time = FakeClock()
    clock = StageClock("train", time.now_ns)
    with clock.waiting("weights", on="version 3"):
        time.tick_ns(500_000_000)
        assert clock.totals_s()["weights"] == 0.5
        assert clock.totals_on_s()["weights", "version 3"] == 0.5
        assert clock.shares()["weights"] == 1.0


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="lunch"):
        StageClock("train").waiting("lunch")


def test_shares_before_any_time_are_zero():
    assert set(StageClock("train", FakeClock().now_ns).shares().values()) == {0.0}


@given(st.lists(st.tuples(st.sampled_from("+-t"), STATES, st.integers(0, 10**12)), max_size=60))
def test_the_states_add_up_to_the_wall_time_in_any_interleaving(events):
    """Waits of overlapping tasks too, which do not end in the reverse order of their begin."""
    time = FakeClock()
    clock = StageClock("stage", time.now_ns)
    open_waits = []
    for kind, state, amount in events:
        if kind == "+":
            wait = clock.waiting(state, on=str(amount % 3))
            wait.__enter__()
            open_waits.append(wait)
        elif kind == "-" and open_waits:
            open_waits.pop(amount % len(open_waits)).__exit__(None, None, None)
        else:
            time.tick_ns(amount)
        assert sum(clock.totals_ns().values()) == time.now_ns()
        assert clock.state == (open_waits[-1].key[0] if open_waits else "working")
    by_reason = sum(clock.totals_on_s().values())
    assert by_reason == pytest.approx(time.now_s())
    assert sum(clock.totals_s().values()) == pytest.approx(time.now_s())
    assert sum(clock.shares().values()) == pytest.approx(1.0 if time.now_ns() else 0.0)


def test_totals_read_from_another_thread_always_add_up():
    clock = StageClock("stage")
    stop = threading.Event()

    def switch() -> None:
        while not stop.is_set():
            with clock.waiting("input"):
                pass

    thread = threading.Thread(target=switch)
    thread.start()
    before = 0
    for _ in range(200):
        now = sum(clock.totals_ns().values())
        assert now >= before
        before = now
    stop.set()
    thread.join()


def test_moved_time_changes_its_state_and_keeps_the_sum():
    time = FakeClock()
    clock = StageClock("rollout", time.now_ns)
    time.tick_ns(100)
    clock.move(70, (Wait.WORKING, ""), (Wait.INPUT, "render"))
    totals = clock.totals_ns()
    assert (totals["working"], totals["input"]) == (30, 70)
    assert sum(totals.values()) == 100


def test_an_account_tells_what_was_spent_before_the_last_minute():
    time = FakeClock()
    clock = StageClock("train", time.now_ns)
    second = 10**9
    assert clock.account()["earlier"] is None
    for _ in range(100):
        time.tick_ns(second)
        clock.account()
    with clock.waiting("input", on="batches"):
        for _ in range(40):
            time.tick_ns(second)
            clock.account()
        account = clock.account()
    spent = {(state, on): ns for state, on, ns in account["spent"]}
    before = {(state, on): ns for state, on, ns in account["earlier"]["spent"]}
    assert spent == {("working", ""): 100 * second, ("input", "batches"): 40 * second}
    assert before == {("working", ""): 80 * second}
    assert account["now_ns"] - account["earlier"]["now_ns"] == 60 * second
