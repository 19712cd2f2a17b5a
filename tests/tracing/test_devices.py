"""Where the time of each device goes, and what more lag would gain: runs made by hand."""

from __future__ import annotations

import threading

import orjson
import pytest

from rlinf_async.tracing.devices import device_reports
from rlinf_async.tracing.views.gains import (
    BatchTimes,
    batch_times,
    expected_gains,
    gain_words,
    replay_s,
)
from rlinf_async.tracing.views.story import credit_words, plan_words, plans_of, story
from tests.tracing.captures import Machine
from tests.tracing.test_diagnosis import host

MS = 1_000_000
HOSTS = (
    host("host-0", roles="render+rollout", cores=[0]),
    host("host-1", roles="render+rollout", cores=[0]),
    host("train", roles="train", cores=[1, 2]),
)
CREDITS = {
    "admitted": 12,
    "queued": 1,
    "running": 1,
    "trained": 10,
    "dropped": 0,
    "drop_reasons": {},
    "version": 5,
    "batches": 1,
    "credits": 1,
    "rows": 2,
    "rows_free": 1,
}


def turns(iterations: int, *, collect_ms: int = 600, train_ms: int = 400) -> Machine:
    """A run that collects and trains in turn; host-1 is ready in half the time."""
    machine = Machine()
    # Only threads of that name work for calls.
    arguments = (machine, iterations, collect_ms, train_ms)
    thread = threading.Thread(target=_turns, args=arguments, name="work-here")
    thread.start()
    thread.join()
    return machine


def _turns(machine: Machine, iterations: int, collect_ms: int, train_ms: int) -> None:
    for name in ("controller", "host-0", "host-1", "train"):
        machine.process(name)
    controller = machine.recorders["controller"]
    train, rollout = controller.stage("train"), controller.stage("rollout")
    for batch in range(iterations):
        with train.waiting("input", on="batches"), controller.span("rollout", 8):
            _segments(machine, batch, collect_ms)
        with rollout.waiting("weights", on="publish"), controller.span("train"):
            recorder = machine.recorders["train"]
            with recorder.span("train.train"):
                with recorder.span("train.gather"):
                    for cell in (0, 1):
                        recorder.flow("segment", cell, batch)
                machine.clock.tick_ns(train_ms * MS)
    told = {"command": "training", "command_age_s": 0.0, "stages": controller.stage_accounts()}
    controller.tell(orjson.dumps({**told, "at_ns": machine.clock.now_ns()}))


def _segments(machine: Machine, batch: int, collect_ms: int) -> None:
    """Both hosts begin together; the clock is one, so the shorter call is inside the longer."""
    slow, quick = machine.recorders["host-0"], machine.recorders["host-1"]
    with slow.span("rollout.collect"):
        with quick.span("rollout.collect"):
            for cell, recorder in enumerate((slow, quick)):
                with recorder.span("render.begin"):
                    recorder.flow("segment", cell, batch)
            machine.clock.tick_ns(collect_ms * MS // 2)
        machine.clock.tick_ns(collect_ms * MS // 2)


def taken(machine: Machine, **status: object):
    now = {"iteration": 5, "losses": {}}
    hosts = [dict(each) for each in HOSTS]
    return machine.capture(hosts=hosts, max_lag=0, status=now, credits=CREDITS, **status)


def test_a_device_is_charged_with_who_works_on_it_and_what_its_bubbles_wait_for():
    first, second = device_reports(taken(turns(5)))
    assert (first.name, second.name) == ("core 0", "cores 1-2")
    assert first.busy == pytest.approx({"host-0": 0.6, "host-1": 0.3}, abs=0.01)
    assert first.busy_share == pytest.approx(0.6, abs=0.01)
    assert first.idle["weights from train"] == pytest.approx(0.4, abs=0.01)
    assert second.busy == pytest.approx({"train": 0.4}, abs=0.01)
    assert second.idle["rollouts"] == pytest.approx(0.6, abs=0.01)
    for each in (first, second):
        assert each.busy_share + sum(each.idle.values()) == pytest.approx(1.0)
    assert str(second) == "cores 1-2: at work 40% (train 40%); 60% waits for rollouts"


def test_a_host_that_yields_its_core_to_training_works_elsewhere_meanwhile():
    """Both hosts collect while training runs: host-1 does so on core 0 then."""
    machine = Machine()
    thread = threading.Thread(target=_overlapping, args=(machine,), name="work-here")
    thread.start()
    thread.join()
    hosts = [
        host("host-0", roles="render+rollout", cores=[0], cores_beside=[0]),
        host("host-1", roles="render+rollout", cores=[1], cores_beside=[0]),
        host("train", roles="train", cores=[1], cores_beside=[1]),
    ]
    capture = machine.capture(hosts=hosts, max_lag=1, status={"iteration": 5})
    first, second = device_reports(capture)
    assert first.busy == pytest.approx({"host-0": 1.0, "host-1": 0.4}, abs=0.01)
    assert first.busy_share == pytest.approx(1.0)
    assert second.busy == pytest.approx({"host-1": 0.6, "train": 0.4}, abs=0.01)


def _overlapping(machine: Machine) -> None:
    for name in ("controller", "host-0", "host-1", "train"):
        machine.process(name)
    recorders = machine.recorders
    for _ in range(5):
        with (
            recorders["controller"].span("rollout"),
            recorders["host-0"].span("rollout.collect"),
            recorders["host-1"].span("rollout.collect"),
        ):
            machine.clock.tick_ns(600 * MS)
            machine.span("train", "train.train", 400)


def test_only_the_last_seconds_count_and_a_run_that_has_not_begun_has_no_report():
    machine = turns(5)
    machine.clock.tick_ns(20_000 * MS)
    assert device_reports(taken(machine), seconds=10.0)[0].busy_share == 0.0
    assert device_reports(taken(machine), seconds=25.0)[0].busy_share > 0.1
    assert device_reports(taken(Machine())) == []


def test_a_replay_follows_the_rule_of_the_lag():
    batches = [BatchTimes(collect_s={"a": 3.0, "b": 1.0}, train_s=2.0)] * 10
    assert replay_s(batches, 0) == pytest.approx(50.0)
    assert replay_s(batches, 1) == pytest.approx(32.0)
    assert replay_s(batches, 2) == pytest.approx(32.0)
    # A host that is slow in turns is made up for by more lag only.
    uneven = [
        BatchTimes(collect_s={"a": 4.0 if n % 2 else 0.0, "b": 0.0 if n % 2 else 4.0}, train_s=1.0)
        for n in range(20)
    ]
    assert replay_s(uneven, 1) == pytest.approx(10 * 5.0 + 1.0)
    assert replay_s(uneven, 2) == pytest.approx(10 * 4.0 + 2.0)


def test_the_gain_of_a_lag_comes_from_the_batches_that_were_recorded():
    capture = taken(turns(10))
    assert batch_times(capture)[3].collect_s == pytest.approx({"host-0": 0.6, "host-1": 0.3})
    assert batch_times(capture)[3].train_s == pytest.approx(0.4, abs=0.001)
    gains = expected_gains(capture)
    assert gains[1] == pytest.approx(10 * 1.0 / (10 * 0.6 + 0.4), abs=0.01)
    assert gain_words(gains) == "expected gain of K=1: 1.6x"
    assert expected_gains(taken(turns(2))) == {}
    # On one core that is at work all the time nothing is to be gained.
    shared = taken(turns(10))
    for each in shared.status["hosts"]:
        each["cores"] = [0]
    assert expected_gains(shared)[1] == pytest.approx(1.0, abs=0.01)
    shared.run["mode"] = "serial"
    assert expected_gains(shared) == {}
    assert gain_words({1: 1.01, 2: 1.02}) == "more lag would gain little"


def test_the_last_minute_is_told_in_one_sentence():
    assert story(taken(turns(10))) == (
        "train waits 60% for rollouts; rollout is bound by the simulator; "
        "expected gain of K=1: 1.6x"
    )
    slow = turns(10, collect_ms=100, train_ms=900)
    assert story(taken(slow)).startswith(
        "rollout waits 90% for weights from train; the run is bound by the learner"
    )


def test_plans_are_read_from_the_run_folder_and_told_in_words(tmp_path):
    plan = {
        "iteration": 9,
        "chosen": "hybrid",
        "reason": "measured",
        "predicted_s": {"collocated": [0.4, 0.3, 0.5], "hybrid": [0.34, 0.3, 0.4]},
        "measured_s": {"hybrid": 0.353},
    }
    (tmp_path / "plans.jsonl").write_bytes(orjson.dumps(plan) + b"\n" + b'{"cut')
    capture = taken(turns(1))
    assert plans_of(capture) == []
    capture.run["run_dir"] = str(tmp_path)
    (found,) = plans_of(capture)
    assert plan_words(found) == "hybrid, 0.34 s predicted, 0.353 s measured; collocated 0.4 s"


def test_credits_are_told_so_that_they_add_up():
    assert credit_words(CREDITS) == (
        "segments: 12 admitted = 1 queued + 1 running + 10 trained + 0 dropped; "
        "1 of 2 rows free; 1 of 1 batches under way"
    )
    assert credit_words({}) == ""
