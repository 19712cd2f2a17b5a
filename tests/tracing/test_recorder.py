"""The ring of records: order, overwriting, threads, names."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.tracing import recorder as module
from rlinf_async.tracing.recorder import NAME_LIMIT, Recorder
from tests.fixtures.clock import FakeClock


def ticking() -> Recorder:
    """Each reading of the clock is one nanosecond later."""
    return Recorder("test", 64, clock_ns=itertools.count().__next__)


def test_a_span_records_its_begin_end_and_items():
    recorder = ticking()
    with recorder.span("collect", items=64):
        recorder.instant("reset", 3)
    recorder.counter("rows_free", 5)
    reset, collect, free = recorder.records()
    assert reset == (0, "instant", "reset", 1, 1, 3.0, "MainThread")
    assert collect == (1, "span", "collect", 0, 2, 64.0, "MainThread")
    assert free == (2, "counter", "rows_free", 3, 3, 5.0, "MainThread")


def test_a_span_that_raises_is_recorded():
    recorder = ticking()
    with pytest.raises(ZeroDivisionError), recorder.span("train"):
        _ = 1 / 0
    assert [record.name for record in recorder.records()] == ["train"]


@given(count=st.integers(0, 300), capacity=st.integers(1, 100))
def test_the_ring_keeps_the_newest_and_counts_the_overwritten(count, capacity):
    recorder = Recorder("test", capacity)
    for number in range(count):
        recorder.counter("n", number)
    kept = recorder.records()
    assert recorder.capacity >= capacity
    assert [record.value for record in kept] == list(range(count))[-recorder.capacity :]
    assert [record.number for record in kept] == list(range(count))[-recorder.capacity :]
    assert recorder.written == count
    assert recorder.overwritten == count - len(kept)


def test_records_of_two_threads_are_complete_and_carry_the_thread():
    recorder = Recorder("test", 4096)

    def work() -> None:
        for number in range(1000):
            recorder.counter("work", number)

    thread = threading.Thread(target=work, name="work")
    thread.start()
    for number in range(1000):
        recorder.counter("loop", number)
    thread.join()
    records = recorder.records()
    assert [record.number for record in records] == list(range(2000))
    for name, who in (("work", "work"), ("loop", "MainThread")):
        mine = [record for record in records if record.name == name]
        assert [record.value for record in mine] == list(range(1000))
        assert {record.thread for record in mine} == {who}


def test_names_beyond_the_limit_share_one():
    recorder = Recorder("test", 8192)
    for number in range(NAME_LIMIT + 10):
        recorder.instant(f"name {number}")
    names = [record.name for record in recorder.records()]
    assert names[0] == "name 0"
    assert names[-1] == "(other)"
    assert len(set(names)) == NAME_LIMIT


def test_a_stage_is_made_once_and_its_waits_are_recorded():
    time = FakeClock()
    recorder = Recorder("test", 16, clock_ns=time.now_ns)
    stage = recorder.stage("train")
    assert recorder.stage("train") is stage
    with stage.waiting("input", on="batches"):
        time.tick_ns(2_000)
    time.tick_ns(1_000)
    (wait,) = recorder.records()
    assert (wait.kind, wait.name, wait.begin_ns, wait.end_ns) == (
        "wait",
        "train:input:batches",
        0,
        2_000,
    )
    totals = recorder.stage_totals()["train"]
    assert (totals["input"], totals["working"]) == (2e-6, 1e-6)


def test_install_replaces_the_recorder_of_the_process(monkeypatch):
    monkeypatch.setattr(module, "_current", module._current)
    module.current().instant("before any install")
    mine = module.install("host-0", capacity=8)
    assert module.current() is mine
    assert (mine.process, mine.records()) == ("host-0", [])


def test_a_capacity_below_one_is_refused():
    with pytest.raises(ValueError, match=r"'test'.*got 0"):
        Recorder("test", 0)
