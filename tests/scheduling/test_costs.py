"""What the cost model learns from measurements, and what it admits not to know."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.scheduling.costs import Drift, Linear, PhaseCost, Sample, nonnegative_least_squares

CPU_SIMULATOR = {4: 0.61, 8: 1.23, 16: 2.46, 32: 4.66, 64: 18.5}
FLAT_POLICY = {10: 0.4, 40: 1.15}


def learned(profile, devices=1):
    cost = PhaseCost("render")
    for units, seconds in profile.items():
        cost.add(Sample(units=units * devices, devices=devices, seconds=seconds))
    return cost


@settings(max_examples=100, deadline=None)
@given(
    a=st.floats(0.0, 5.0), b=st.floats(0.001, 1.0), units=st.integers(4, 64), d=st.integers(1, 4)
)
def test_a_line_is_recovered_and_devices_share_the_units(a, b, units, d):
    cost = learned({x: a + b * x for x in (4, 8, 16, 64)})
    expected = a + b * math.ceil(units / d)
    if math.ceil(units / d) >= 4:
        assert cost.seconds(units, d) == pytest.approx(expected, rel=1e-6)


def test_what_bends_beyond_the_measured_range_is_marked_and_within_the_interval():
    early = learned({x: s for x, s in CPU_SIMULATOR.items() if x <= 32})
    told = early.predict(64, 1)
    assert told.extrapolated
    assert told.seconds == pytest.approx(9.2, rel=0.05)
    assert told.low < 18.5 < told.high
    within = early.predict(24, 1)
    assert not within.extrapolated
    assert within.high / within.low < 1.2


def test_a_bend_is_learned_from_five_sizes():
    cost = learned(CPU_SIMULATOR)
    for units, seconds in CPU_SIMULATOR.items():
        assert cost.seconds(units, 1) == pytest.approx(seconds, rel=0.05)
    assert cost.shape.x0 == 32


def test_one_measured_size_does_not_promise_that_splitting_helps():
    # Time per batch over the number of environments would say that half the units take half.
    cost = learned({32: 4.0})
    half = cost.predict(16, 1)
    assert half.extrapolated
    assert half.low <= 2.0 + 1e-9
    assert half.high >= 4.0
    assert half.seconds == pytest.approx(3.0)


def test_contention_is_learned_from_an_overlapped_trial_and_unknown_before():
    cost = learned({8: 1.0, 16: 2.0})
    before = cost.predict(16, 1, {"train": 1.0})
    assert before.seconds == pytest.approx(2.0)
    assert before.high >= 3.0
    cost.add(Sample(units=16, devices=1, seconds=2.5, overlap={"train": 0.5}))
    after = cost.predict(16, 1, {"train": 1.0})
    assert after.seconds == pytest.approx(3.0)
    assert cost.predict(16, 1).seconds == pytest.approx(2.0)


def test_more_threads_than_cores_are_not_taken_for_a_slow_phase():
    cost = PhaseCost("train")
    for units in (8, 16, 32):
        cost.add(Sample(units=units, devices=1, seconds=units * 0.2, threads_per_core=2.0))
    assert cost.seconds(16, 1) == pytest.approx(1.6)


def test_only_the_speed_follows_the_run():
    cost = learned({x: 0.1 + 0.01 * x for x in (4, 8, 16, 32)})
    shape = cost.shape
    for _ in range(100):
        cost.follow(Sample(units=16, devices=1, seconds=2 * 0.26))
    assert cost.shape == shape
    assert cost.seconds(16, 1) == pytest.approx(0.52, rel=1e-3)
    assert cost.seconds(32, 1) == pytest.approx(0.84, rel=1e-3)


def test_device_exponent_needs_three_device_counts():
    def sub_linear(devices):
        cost = PhaseCost("train")
        for d in devices:
            for x in (4, 8, 16):
                cost.add(Sample(units=x * d, devices=d, seconds=(1 + x) * d**-0.2))
        return cost.shape.e

    assert sub_linear((1, 4)) == 0.0
    assert sub_linear((1, 2, 4)) == pytest.approx(0.2)


def test_never_measured_is_an_error_that_names_the_phase():
    with pytest.raises(ValueError, match="'reward' was never measured"):
        PhaseCost("reward").seconds(1, 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000))
def test_nonnegative_fit_is_no_worse_than_any_other(seed):
    rng = np.random.default_rng(seed)
    matrix, target = rng.uniform(0, 1, (6, 3)), rng.uniform(-1, 1, 6)
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    error = np.sum((matrix @ found - target) ** 2)
    for other in rng.uniform(0, 1.5, (200, 3)):
        assert error <= np.sum((matrix @ other - target) ** 2) + 1e-9


def test_link_is_latency_and_bandwidth():
    link = Linear.fitted([1e3, 1e6, 1e7], [1e-4 + s / 1e9 for s in (1e3, 1e6, 1e7)])
    assert link(5e6) == pytest.approx(1e-4 + 5e-3, rel=1e-6)
    assert Linear.fitted([], [])(100) == 0.0


def test_drift_is_seen_within_few_iterations_and_noise_never_is():
    slow = Drift()
    seen = next(n for n in range(100) if slow.add(math.log(5.0)))
    assert seen <= 4
    steady = Drift()
    noise = np.random.default_rng(0).normal(0.0, 0.03, 10_000)
    assert not any(steady.add(float(each)) for each in noise)
    lone = Drift()
    assert not lone.add(math.log(50.0))
