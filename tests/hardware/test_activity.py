"""What environments are doing can be read from outside, also after their process has ended."""

import contextlib
import sys
import threading
import time

import pytest

from rlinf_async.hardware import activity
from rlinf_async.hardware.activity import (
    BOARD_BYTES,
    BOARD_VARIABLE,
    BUILD,
    RESET,
    STEP,
    Board,
    BoardFile,
)
from rlinf_async.hardware.process import HostProcess

DIES = """
import os
from rlinf_async.hardware import activity
line = activity.current().line()
for step in range(5):
    line.note(activity.STEP, 7, step)
os.abort()
"""


def board():
    return Board(bytearray(BOARD_BYTES))


def test_a_note_says_what_whose_and_when():
    one = board()
    assert one.doing() == []
    line = one.line()
    before_s = time.perf_counter()
    line.note(RESET, 3)
    assert str(one.doing()[0]) == "reset of slot 3"
    line.note(STEP, 3, 17)
    assert str(one.doing()[0]) == "step 17 of the episode of slot 3"
    assert before_s <= one.last_note_s() <= time.perf_counter()
    line.note(STEP, 16, 2, 4)
    together = "step of slots 16 to 19 together, at step 2 of the longest episode"
    assert str(one.doing()[0]) == together
    line.note(BUILD, 4)
    assert str(one.doing()[0]) == "building of slot 4"
    line.rest()
    assert one.doing() == []


def test_the_slowest_of_each_kind_is_kept(monkeypatch):
    now_ns = iter([0, 5, 105, 115, 1115, 9115])
    monkeypatch.setattr(activity, "perf_counter_ns", lambda: next(now_ns))
    one = board()
    line = one.line()
    line.note(RESET, 0)
    line.note(STEP, 0, 0)  # the reset took 5
    line.note(STEP, 0, 1)  # the step took 100
    line.note(STEP, 0, 2)  # 10
    line.rest()  # 1000
    line.note(STEP, 0, 3)  # resting for 8000 counts for nothing
    assert one.slowest_s(STEP) == pytest.approx(1000e-9)
    assert one.slowest_s(RESET) == pytest.approx(5e-9)


def test_each_thread_has_a_line_and_more_threads_than_lines_do_no_harm():
    one, began = board(), threading.Barrier(101)

    def work(slot):
        one.line().note(STEP, slot, 0)
        began.wait()

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(100)]
    for thread in threads:
        thread.start()
    began.wait()
    for thread in threads:
        thread.join()
    slots = [doing.slot for doing in one.doing()]
    assert len(slots) == len(set(slots)) == BOARD_BYTES // 64


def test_the_block_is_at_rest_after_an_error_too(monkeypatch):
    monkeypatch.setattr(activity, "_current", board())

    def fail():
        with activity.working() as line:
            line.note(STEP, 1, 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert activity.current().doing() == []


@pytest.mark.process
def test_the_last_note_survives_the_process(tmp_path):
    with contextlib.closing(BoardFile("h0")) as file:
        process = HostProcess.spawn(
            "h0",
            ["-c", DIES],
            interpreter=sys.executable,
            cores=(),
            threads=1,
            environment={BOARD_VARIABLE: str(file.descriptor)},
            log_folder=tmp_path,
            inherited=(file.descriptor,),
        )
        with contextlib.closing(process):
            assert process.join(20.0) == -6
            assert [str(each) for each in file.board.doing()] == ["step 4 of the episode of slot 7"]
