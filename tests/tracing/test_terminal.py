"""The terminal view, drawn from a run made by hand."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import orjson
import pytest

from rlinf_async.tracing.views.timeline import span_sums, timeline
from tests.tracing.captures import Machine
from tests.tracing.test_diagnosis import BALANCED, host

pytest.importorskip("textual", reason="textual is not installed: pip install 'rlinf_async[trace]'")

from textual.widgets import Static

from rlinf_async.tracing.views.terminal import RunView


class ByHand:
    """What the view asks of a `Viewer`."""

    def __init__(self, logs: Path) -> None:
        self.machine = Machine()
        told = {"command": "training", "command_age_s": 0.0, "at_ns": 10**9, "stages": BALANCED}
        self.machine.process("controller").tell(orjson.dumps(told))
        told = {"command": "idle", "command_age_s": 0.0, "at_ns": 10**9, "stages": {}}
        self.machine.process("host-0").tell(orjson.dumps(told))
        self.run = {"id": "ppo-1", "pid": os.getpid(), "run_dir": str(logs.parent)}
        self.alive = True

    def pump(self) -> bool:
        return self.alive

    def capture(self, seconds: float):
        now = {
            "title": "ppo · disaggregated",
            "phase": "training",
            "elapsed_s": 61.0,
            "iteration": 12,
            "iterations": 250,
            "env_steps": 4096,
            "env_steps_per_s": 3412.0,
            "return_mean": 7.5,
            "lag": [0, 0.9, 1],
            "loop_lag_ms": 3.0,
            "losses": {},
        }
        streams = [{"name": "batches", "fill": 1, "capacity": 2, "put": 13}]
        for each in streams:
            each.update(writer="pack", reader="train")
        taken = self.machine.capture(
            status=now, max_lag=1, dropped=0, hosts=[host()], streams=streams, history=[]
        )
        taken.run.update(self.run)
        return taken


def shown(view: RunView, name: str) -> str:
    return str(view.query_one(f"#{name}", Static).render())


def test_the_view_shows_the_run_and_obeys_its_keys(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "controller.jsonl").write_text('{"at":"2026-01-01T10:11:12","event":"run_started"}\n')

    async def look() -> None:
        view = RunView(ByHand(logs))
        async with view.run_test(size=(140, 40)) as pilot:
            await pilot.pause()
            assert view.frames >= 1
            assert "ppo-1" in shown(view, "head")
            assert "12/250" in shown(view, "head")
            assert "3,412" in shown(view, "numbers")
            assert "▶ controller" in shown(view, "timeline")
            assert "host-0" in shown(view, "timeline")
            assert "bound by" in shown(view, "verdict")
            assert "1/2" in shown(view, "where")
            assert "10:11:12 run_started" in shown(view, "log")
            await pilot.press("down")
            assert "▶ host-0" in shown(view, "timeline")
            await pilot.press("minus", "space")
            assert "the last 5 s (held" in str(view.query_one("#timeline").border_title)
            assert "go on" in shown(view, "keys")
            await pilot.press("q")
        assert view.return_code == 0

    asyncio.run(look())


def test_a_timeline_shows_what_was_done_for_most_of_each_column():
    machine = Machine()
    machine.process("host-0")
    since_ns = machine.clock.now_ns()
    machine.span("host-0", "render.step", 40)
    with machine.recorders["host-0"].span("rollout.collect"):
        machine.clock.tick_ns(10_000_000)
        machine.span("host-0", "rollout.act", 10)
    machine.clock.tick_ns(40_000_000)
    until_ns = machine.clock.now_ns()
    (row,) = timeline(
        machine.capture(), until_ns=until_ns, seconds=(until_ns - since_ns) * 1e-9, width=10
    )
    assert [what for what, _ in row.cells] == [
        *["render.step"] * 4,
        "rollout.collect",
        "rollout.act",
        *[""] * 4,
    ]
    assert row.busy == pytest.approx(0.6, abs=0.02)


def test_a_stage_that_waits_still_is_shown_waiting():
    machine = Machine()
    controller = machine.process("controller")
    clock = controller.stage("train")
    machine.clock.tick_ns(500_000_000)
    clock.waiting("input", on="batches").__enter__()
    machine.clock.tick_ns(500_000_000)
    controller.tell(orjson.dumps({"stages": controller.stage_accounts()}))
    (row,) = timeline(machine.capture(), until_ns=machine.clock.now_ns(), seconds=1.0, width=4)
    assert [what for what, _ in row.cells] == ["working", "working", "input", "input"]


def test_in_serial_mode_the_thread_that_works_for_calls_is_shown_below_the_stages():
    machine = Machine()
    controller = machine.process("controller")
    controller.stage("train")
    controller.stage("train@serial")

    def work() -> None:
        machine.span("controller", "train.train", 600)

    with controller.span("train"):
        thread = threading.Thread(target=work, name="work-serial")
        thread.start()
        thread.join()
        machine.clock.tick_ns(400_000_000)
    controller.tell(orjson.dumps({"stages": controller.stage_accounts()}))
    until_ns = machine.clock.now_ns()
    rows = timeline(machine.capture(), until_ns=until_ns, seconds=1.0, width=5)
    assert [row.label for row in rows] == ["train", "work-serial"]
    assert [what for what, _ in rows[1].cells] == [*["train.train"] * 3, "", ""]


def test_sums_name_what_took_the_most_time():
    machine = Machine()
    machine.process("host-0")
    for _ in range(3):
        machine.span("host-0", "render.step", 2)
    machine.span("host-0", "rollout.act", 5)
    sums = span_sums(machine.capture().processes[0], 0)
    assert [(s.name, s.count, round(s.total_s, 6)) for s in sums] == [
        ("render.step", 3, 0.006),
        ("rollout.act", 1, 0.005),
    ]
