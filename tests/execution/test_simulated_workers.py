"""Plans acted on by real processes whose work only occupies devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from rlinf_async.hardware.devices import available_cores
from rlinf_async.workers.simulated import occupy

TWO_CORES = pytest.mark.skipif(len(available_cores()) < 2, reason="a plan needs two cores")
HOLD = """
import sys, time
from pathlib import Path
from rlinf_async.workers.simulated import occupy
print("ready", flush=True)
input()
occupy(Path(sys.argv[1]), 0.2)
print(time.monotonic(), flush=True)
"""


def test_two_processes_on_one_simulated_device_take_turns(tmp_path):
    core = available_cores()[0]
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        for _ in range(2)
    ]
    try:
        assert all(each.stdout.readline() == "ready\n" for each in pair)
        for each in pair:
            each.stdin.write("\n")
            each.stdin.flush()
        began = time.monotonic()
        ends = [float(each.stdout.readline()) - began for each in pair]
    finally:
        for each in pair:
            each.communicate(timeout=20)
    assert max(ends) >= 0.39  # together they held the device for 0.4 s
    assert min(ends) >= 0.2


def test_what_is_left_is_counted_by_the_clock(tmp_path):
    ticks = iter([0.0, 0.05, 0.05, 0.2])
    occupy(tmp_path, 0.1, now=lambda: next(ticks))
    assert next(ticks, None) is None


@TWO_CORES
@pytest.mark.process
def test_a_run_plans_and_plans_anew_when_collecting_becomes_slower(launch):
    load = ("--cells", "4", "--cell-s", "0.008", "--train-s", "0.06", "--slow-after", "24")
    run = launch("simulated.py", "--mode", "auto", *load, "--iterations", "1000")
    assert run.finish() == 0, run.stderr
    changed = int("".join(run.out).split("slow from")[1].split()[0])
    plans = [json.loads(line) for line in (run.run_dir / "plans.jsonl").read_text().splitlines()]
    # Collecting takes 32 ms of a core before, 160 after; training 60 ms throughout.
    assert plans[0]["chosen"] in ("disaggregated", "hybrid")
    assert plans[0]["measured_s"]["collocated"] > plans[0]["measured_s"][plans[0]["chosen"]]
    assert plans[-1]["chosen"] == "hybrid"
    if plans[0]["chosen"] == "disaggregated":
        assert "the load changed (collect" in plans[1]["reason"]
        assert changed < plans[1]["iteration"] <= changed + 8
