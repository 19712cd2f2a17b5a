"""Schedules, optimizer and loss records, and which configurations are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlinf_async.algorithms import Adam, PPOLoss, constant, gae, linear, vtrace
from rlinf_async.algorithms.learner import check_training
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe, rebuild


def test_importing_algorithms_imports_no_torch():
    code = (
        "import rlinf_async.algorithms, rlinf_async.algorithms.learner, sys; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_linear_schedule_is_a_straight_line_and_stays_within_its_ends():
    schedule = linear(3e-4, 1e-4)
    assert schedule(0.0) == 3e-4
    assert schedule(1.0) == pytest.approx(1e-4)
    assert schedule(0.25) == pytest.approx(2.5e-4)
    assert schedule(1.5) == pytest.approx(1e-4)


def test_learning_rates_are_numbers_or_schedules():
    assert Adam(learning_rate=1e-3).rate(0.7) == 1e-3
    assert Adam(learning_rate=constant(2e-3)).rate(0.7) == 2e-3
    assert Adam(learning_rate=linear(1.0, 0.0)).rate(0.75) == 0.25


@pytest.mark.parametrize(
    "record",
    [
        Adam(learning_rate=linear(3e-4, 0.0), max_grad_norm=None),
        PPOLoss(clip=0.1, clip_high=0.3, correction="decoupled", weight_cap=5.0, cap="drop"),
    ],
)
def test_records_travel_by_name_and_fields(record):
    assert rebuild(describe(record, where="test"), where="test") == record


def test_clip_limits_are_asymmetric_only_on_request():
    assert (PPOLoss().low, PPOLoss().high) == (0.8, 1.2)
    assert PPOLoss(clip=0.2, clip_high=0.28).high == 1.28
    assert PPOLoss(clip=None).high == float("inf")


@pytest.mark.parametrize(
    ("switches", "word"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": 1.5}, "clip"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"value_clip": -0.1}, "value_clip"),
        ({"value_weight": -1.0}, "value_weight"),
        ({"entropy_weight": float("nan")}, "entropy_weight"),
        ({"correction": "decouple"}, "correction"),
        ({"normalize_advantages": "global"}, "normalize_advantages"),
        ({"clip": None, "clip_high": 0.3}, "clip_high has no effect"),
        ({"clip": None, "dual_clip": 3.0}, "dual_clip has no effect"),
        ({"weight_cap": 5.0}, "no effect without a correction"),
        ({"cap": "drop"}, "no effect without a correction"),
        ({"value_weight": 0.0, "value_clip": 0.2}, "value_clip has no effect"),
    ],
)
def test_loss_switches_that_are_wrong_or_unused_are_refused(switches, word):
    with pytest.raises(BadInput, match=word):
        PPOLoss(**switches)


@pytest.mark.parametrize(
    "switches",
    [{"learning_rate": -1.0}, {"max_grad_norm": 0.0}, {"betas": (0.9, 1.0)}, {"eps": 0.0}],
)
def test_optimizer_settings_out_of_range_are_refused(switches):
    with pytest.raises(BadInput, match=next(iter(switches))):
        Adam(**{"learning_rate": 1e-3, **switches})


def configuration(**changes):
    return {
        "loss": PPOLoss(),
        "optimizer": Adam(learning_rate=1e-3),
        "advantages": gae(0.99, 0.95),
        "epochs": 1,
        "minibatch": 8,
        "iterations": 2,
        **changes,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"max_lag": 3},
        {"max_lag": 0, "lag": "free"},
        {"max_lag": 2, "lag": "free", "advantages": vtrace(0.99, 0.95)},
        {"max_lag": 2, "lag": "free", "loss": PPOLoss(correction="decoupled")},
        {"max_lag": 2, "loss": PPOLoss(clip=None), "advantages": vtrace(0.99, 0.95)},
        {"max_lag": 2, "loss": PPOLoss(clip=None, correction="decoupled")},
        {"loss": PPOLoss(clip=None)},
    ],
)
def test_sound_configurations_pass(changes):
    check_training(**configuration(**changes))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epochs": 0}, "epochs"),
        ({"minibatch": 0}, "minibatch"),
        ({"shards": 9}, "shards"),
        ({"optimizer": 1e-3}, "optimizer"),
        ({"advantages": "gae"}, "advantages"),
        ({"loss": "ppo"}, "loss"),
        ({"max_lag": -1}, "max_lag"),
        ({"lag": "loose"}, "lag"),
        ({"max_lag": 1, "lag": "free"}, "free lag with max_lag=1 needs a correction"),
        ({"max_lag": 2, "loss": PPOLoss(clip=None)}, "unclipped loss on data that is 2"),
        (
            {"loss": PPOLoss(correction="decoupled"), "advantages": vtrace(0.99, 0.95)},
            "both correct",
        ),
    ],
)
def test_configurations_that_cannot_be_right_are_refused(changes, word):
    with pytest.raises(BadInput, match=word):
        check_training(**configuration(**changes))
