"""When an environment is taken for stuck."""

import pytest

from rlinf_async.execution.env_watch import OVER_SLOWEST, EnvWatch
from rlinf_async.hardware import activity
from rlinf_async.hardware.activity import BOARD_BYTES, BUILD, RESET, STEP, Board

S = 10**9


class Bench:
    """A board and a watch under a clock that the test moves."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(activity, "perf_counter_ns", lambda: int(self.now_s * S))
        self.board = Board(bytearray(BOARD_BYTES))
        self.line = self.board.line()
        self.watch = EnvWatch(self.board, limit_s=10.0, first_s=300.0)

    def lasts(self, seconds, kind, slot=0, step=0):
        self.line.note(kind, slot, step)
        self.now_s += seconds

    def look(self):
        return self.watch.look(int(self.now_s * S))


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)


def test_nothing_is_stuck_while_it_rests_or_moves(bench):
    assert bench.look() is None
    for step in range(5):
        bench.lasts(9.0, STEP, 0, step)
        assert bench.look() is None
        assert bench.look() is None
    bench.line.rest()
    bench.now_s += 1e6
    assert bench.look() is bench.look() is None


def test_a_step_over_the_limit_is_named_at_the_second_look(bench):
    bench.lasts(0.5, STEP, 7, 3)
    bench.lasts(10.5, STEP, 7, 4)
    assert bench.look() is None
    bench.now_s += 0.5
    assert str(bench.look()) == (
        "step 4 of the episode of slot 7 has taken 11.0 s, its limit is 10 s; "
        "the slowest step so far took 0.5 s"
    )


def test_the_limit_grows_with_the_slowest_of_the_same_kind(bench):
    bench.lasts(3.0, RESET)
    bench.lasts(2.0, STEP)
    bench.line.rest()
    assert bench.watch.limit_s(STEP) == OVER_SLOWEST * 2.0
    assert bench.watch.limit_s(RESET) == OVER_SLOWEST * 3.0
    bench.lasts(39.0, STEP)
    assert bench.look() is bench.look() is None
    bench.now_s += 2.0
    assert bench.look() is None
    assert "its limit is 40 s" in str(bench.look())


@pytest.mark.parametrize("kind", [STEP, RESET, BUILD])
def test_what_was_never_measured_has_the_time_of_a_start(bench, kind):
    bench.lasts(299.0, kind)
    assert bench.look() is bench.look() is None
    bench.now_s += 2.0
    assert bench.look() is None
    assert "its limit is 300 s; none has been measured yet" in str(bench.look())


def test_work_that_moved_between_two_looks_is_not_stuck(bench):
    bench.lasts(0.1, STEP)
    bench.lasts(30.0, STEP, 0, 1)
    assert bench.look() is None
    bench.line.note(STEP, 0, 2)
    assert bench.look() is None
    bench.lasts(601.0, STEP, 0, 3)
    assert bench.look() is None, "suspected anew, not for the second time"
    assert bench.look() is not None


def test_the_thread_that_began_first_is_blamed(bench):
    bench.lasts(0.1, STEP)
    bench.lasts(5.0, STEP, 1, 1)
    other = bench.board
    other._own.line = None
    other.line().note(STEP, 2, 2)
    bench.now_s += 6.0
    bench.look()
    assert "slot 1" in str(bench.look())
