"""Processes move with their threads and children."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlinf_async.hardware import affinity

FAMILY = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
threading.Thread(target=sys.stdin.readline, daemon=True).start()
print(child.pid, flush=True)
end = threading.Event()
end.wait()
"""


def test_all_threads_and_children_move():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: there is nowhere to move to")
    parent = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        child = int(parent.stdout.readline())
        for core in cores[:2]:
            affinity.move(parent.pid, [core])
            threads = [int(each) for each in os.listdir(f"/proc/{parent.pid}/task")]
            assert len(threads) > 1
            assert all(os.sched_getaffinity(each) == {core} for each in (*threads, child))
    finally:
        parent.kill()
        parent.communicate()
        os.kill(child, 9)


def test_a_process_that_has_ended_is_passed_over():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    affinity.move(ended.pid, [0])
