"""Verdicts on runs made by hand."""

from __future__ import annotations

import math

import orjson
import pytest

from rlinf_async.tracing.account import bound_by, overlap_gain, stages_of, wait_words
from rlinf_async.tracing.diagnosis import diagnose, waits_for_whom
from tests.tracing.captures import Machine


def stage(state: str = "working", on: str = "", for_s: float = 0.1, **spent_s: float):
    """An account as a process tells it; seconds by state, or `state__on`."""
    now_ns = 10**12
    spent = [[*key.partition("__")[::2], round(s * 1e9)] for key, s in spent_s.items()]
    wall_ns = sum(ns for *_, ns in spent)
    return {
        "state": state,
        "on": on,
        "since_ns": now_ns - round(for_s * 1e9),
        "began_ns": now_ns - wall_ns,
        "now_ns": now_ns,
        "spent": spent,
    }


def host(name: str = "host-0", **row: object) -> dict[str, object]:
    usual = {"pid": 7, "doing": "", "at_work": "", "at_work_s": 0.0, "slowest_s": 0.01}
    return {"name": name, **usual, "silent_s": 0.1, "command": "rollout.collect()", **row}


def run(*, hosts=None, streams=(), status=None, controller=None, accounts=None, **more):
    """A capture of a controller and one host, at the moment at which the accounts were told."""
    machine = Machine()
    told = {"command": "training", "command_age_s": 0.0, "stages": controller or {}}
    machine.process("controller").tell(orjson.dumps(told))
    told = {"command": "idle", "command_age_s": 0.0, "stages": accounts or {}}
    machine.process("host-0").tell(orjson.dumps({**told, **more.pop("told", {})}))
    machine.clock.tick_ns(10**12 - machine.clock.now_ns())
    usual = {"iteration": 9, "losses": {"policy_loss": 0.1}, "lag": [0, 0.5, 1], "loop_lag_ms": 2.0}
    return machine.capture(
        at_ns=10**12,
        max_lag=1,
        status={**usual, **(status or {})},
        hosts=[host()] if hosts is None else hosts,
        streams=list(streams),
        **more,
    )


BALANCED = {
    "train": stage(working=5, input__batches=5),
    "rollout": stage(working=6, weights__publish=4),
}


def kinds(capture, states=None):
    return [(each.kind, each.subject) for each in diagnose(capture, states)]


def test_a_run_in_balance_is_healthy():
    assert kinds(run(controller=BALANCED)) == []


def test_an_environment_that_stays_in_a_step_is_stuck_and_the_chain_leads_to_it():
    controller = {
        "train": stage("input", "batches", 3.0, working=5, input__batches=8),
        "pack": stage("input", "segments", 3.1, input__segments=13),
        "rollout": stage("working", "", 3.2, working=13),
    }
    streams = [
        {"name": "segments", "writer": "", "reader": "pack", "fill": 0, "capacity": 4},
        {"name": "batches", "writer": "pack", "reader": "train", "fill": 0, "capacity": 2},
    ]
    row = host(at_work="step 10 of the episode of slot 3", at_work_s=3.0)
    (found,) = diagnose(run(hosts=[row], controller=controller, streams=streams))
    assert (found.kind, found.subject) == ("stuck", "host-0")
    assert "step 10 of the episode of slot 3 for 3.0 s (the slowest before took 0.01 s)" in str(
        found
    )
    assert found.evidence == (
        "train waits for batches for 3.0 s",
        "pack waits for segments for 3.1 s",
        "rollout is at work for 3.2 s",
    )


@pytest.mark.parametrize(
    ("at_work_s", "slowest_s", "is_stuck"),
    [
        (1.0, 0.01, False),
        (2.0, 0.01, True),
        (2.0, 1.0, False),
        (30.0, 0.0, False),
        (70.0, 0.0, True),
    ],
)
def test_a_step_is_judged_by_the_slowest_before_it(at_work_s, slowest_s, is_stuck):
    row = host(at_work="reset of slot 1", at_work_s=at_work_s, slowest_s=slowest_s)
    assert bool(kinds(run(hosts=[row], controller=BALANCED))) is is_stuck


@pytest.mark.parametrize(
    ("state", "on", "for_s", "fill", "is_stuck"),
    [
        ("working", "", 5.0, 2, True),
        ("working", "", 1.0, 2, False),
        ("working", "", 5.0, 0, False),
        ("input", "batches", 5.0, 1, False),
        ("space", "mine", 5.0, 2, False),
    ],
)
def test_a_stage_that_leaves_its_stream_alone_is_stuck(state, on, for_s, fill, is_stuck):
    controller = {**BALANCED, "mine": stage(state, on, for_s, working=5, input__batches=5)}
    stream = {"name": "batches", "writer": "pack", "reader": "mine", "fill": fill, "capacity": 2}
    expected = [("stuck", "mine")] if is_stuck else []
    assert kinds(run(controller=controller, streams=[stream])) == expected


def test_a_process_that_was_stopped_or_has_ended_is_named():
    assert kinds(run(controller=BALANCED), {7: "T"}) == [("stuck", "host-0")]
    assert kinds(run(controller=BALANCED), {7: ""}) == [("stuck", "host-0")]
    assert kinds(run(controller=BALANCED), {7: "S"}) == []
    assert kinds(run(controller=BALANCED, hosts=[host(silent_s=9.0)])) == [("stuck", "host-0")]


def test_a_call_that_takes_many_times_longer_than_any_before_is_stuck():
    told = {"command": "train.train", "command_age_s": 61.0}
    assert kinds(run(controller=BALANCED, told=told)) == [("stuck", "host-0")]
    assert kinds(run(controller=BALANCED, told={**told, "command_age_s": 9.0})) == []


def test_the_learner_or_the_rollouts_bound_a_run_that_is_out_of_balance():
    slow_learner = {
        "train": stage(working=10),
        "rollout": stage(working=2, weights__publish=8),
    }
    (found,) = diagnose(run(controller=slow_learner))
    assert (found.kind, found.subject) == ("slow", "train")
    assert "bound by the learner, which works 5.0 times as long as collecting" in found.sentence
    slow_rollouts = {"train": stage(working=2, input__batches=8), "rollout": stage(working=10)}
    accounts = {
        "render@host-0": stage(working=8, input__controller=2),
        "rollout@host-0": stage(working=2, input__render=8),
    }
    taken = run(controller=slow_rollouts, accounts=accounts)
    assert kinds(taken) == []  # phases that take turns are no fault
    taken.status["status"]["plan"] = "hybrid (held)"
    assert kinds(taken) == [("slow", "rollout")]
    taken.status.update(max_lag=0)  # nothing overlaps then
    taken.status["status"]["lag"] = [0, 0, 0]
    assert kinds(taken) == []
    assert bound_by(stages_of(taken)) == ("the simulator", pytest.approx(5.0))
    assert kinds(run(controller=slow_learner, status={"iteration": 1})) == []


def test_the_gain_of_overlapping_is_that_of_the_formula():
    accounts = {"train@train": stage(working=4, input__controller=6)}
    stages = stages_of(run(controller={"rollout": stage(working=6)}, accounts=accounts))
    assert overlap_gain(stages) == pytest.approx(10 / 6)


def test_what_is_not_finite_late_old_or_growing_is_sick():
    assert kinds(run(controller=BALANCED, status={"losses": {"value_loss": math.nan}})) == [
        ("sick", "train")
    ]
    assert kinds(run(controller=BALANCED, status={"loop_lag_ms": 400.0})) == [
        ("sick", "controller")
    ]
    assert kinds(run(controller=BALANCED, status={"lag": [0, 1, 2]})) == [("sick", "train")]
    growing = [[at * 5 * 10**9, at, at, 0, 10**9 + at * 10**8, 0] for at in range(12)]
    assert kinds(run(controller=BALANCED, history=growing)) == [("sick", "hosts")]
    # The first iterations load what they need, and a step is no growth.
    loading = [[at * 5 * 10**9, min(at, 2), 0, 0, row[4], 0] for at, row in enumerate(growing)]
    assert kinds(run(controller=BALANCED, history=loading)) == []
    step = [[*row[:4], 10**9 * (1 + (at > 5)), 0] for at, row in enumerate(growing)]
    assert kinds(run(controller=BALANCED, history=step)) == []
    steady = [
        [row[0], row[1], row[2], 0, 10**9 + (at % 3) * 10**8, 0] for at, row in enumerate(growing)
    ]
    assert kinds(run(controller=BALANCED, history=steady)) == []


def test_a_run_that_failed_says_so_first():
    found = diagnose(run(controller=BALANCED, failure="WorkerLost: host-0 was killed"))
    assert str(found[0]) == "failed: the run ended in iteration 10: WorkerLost: host-0 was killed"


def test_waits_are_told_in_words():
    controller = {"train": stage(working=5.9, input__batches=4.1)}
    stages = stages_of(run(controller=controller))
    assert wait_words(stages) == ["train works 59%, waits 41% for input from batches"]
    assert sum(stages["train"].shares().values()) == pytest.approx(1.0)


def test_a_chain_that_goes_round_ends():
    controller = {
        "train": stage("devices", "rollout", 1.0, working=1),
        "rollout": stage("weights", "publish", 1.0, working=1),
    }
    assert len(waits_for_whom(stages_of(run(controller=controller)), ())) == 2
