"""Seconds of phases and of their overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.execution.phase_times import PhaseTimes
from tests.fixtures.clock import FakeClock
from tests.fixtures.loops import in_loop


@in_loop
async def test_seconds_of_each_phase_of_both_and_of_neither():
    clock = FakeClock()
    times = PhaseTimes(clock.now_s)
    await clock.advance_s(1.0)
    with times.running("collect"):
        await clock.advance_s(2.0)
        with times.running("train"), times.running("collect"):
            await clock.advance_s(3.0)
    with times.running("train"):
        await clock.advance_s(4.0)
        found = times.take()
        assert (found.seconds, found.collect_s, found.train_s, found.both_s) == (10, 5, 7, 3)
        assert found.rest_s == 1.0
        await clock.advance_s(0.5)
    assert times.take().train_s == 0.5


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=6)


@given(collect=spans, train=spans)
def test_equal_to_counting_every_second(collect, train):
    clock = FakeClock()
    times = PhaseTimes(clock.now_s)
    inside: dict[tuple[str, int], object] = {}
    counts = {"collect": 0, "train": 0, "both": 0}
    for second in range(31):
        busy = {"collect": False, "train": False}
        for phase, listed in (("collect", collect), ("train", train)):
            for number, (begin, end) in enumerate(listed):
                key = (phase, number)
                if begin <= second < end:
                    busy[phase] = True
                    if key not in inside:
                        inside[key] = times.running(phase)
                        inside[key].__enter__()
                elif key in inside:
                    inside.pop(key).__exit__(None, None, None)
        for phase in busy:
            counts[phase] += busy[phase]
        counts["both"] += all(busy.values())
        clock.tick_ns(1_000_000_000)
    found = times.take()
    assert (found.collect_s, found.train_s, found.both_s) == tuple(counts.values())
