"""The arithmetic of the benchmarks: what they leave out and how they compare."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of tools/bench as the benchmarks themselves do."""
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module


def test_a_steady_window_leaves_out_start_up_and_the_end(bench):
    rows = [
        {"time_s": t, "cpu_s": c, "env_steps": 100 * (i + 1)}
        for i, (t, c) in enumerate(
            [(9.0, 9.0), (10.0, 10.0), (11.0, 10.5), (12.0, 11.0), (12.1, 20)]
        )
    ]
    window = bench("runs").steady(rows, warm_up=1, drain=1)
    assert window.env_steps_per_s == pytest.approx(100.0)
    assert window.cpu_s_per_step == pytest.approx(1.0 / 200)


def test_a_curve_has_one_point_for_each_twentieth_after_the_first_episode(bench):
    rows = [
        {"env_steps": 10 * (i + 1), "return_mean": None if i < 3 else float(i)} for i in range(100)
    ]
    curve = bench("learning").curve_of(rows, 1000)
    assert curve[0] == (50, 4.0)
    assert curve[-1] == (1000, 99.0)
    assert len(curve) == 20


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [([1, 2, 3], [1, 2, 3], 1.0), ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252)],
)
def test_the_permutation_test_counts_splits_at_least_as_far_apart(bench, ours, theirs, p):
    assert bench("learning").permutation_p(ours, theirs) == pytest.approx(p)


@pytest.mark.parametrize(
    ("median", "said"), [(5, "below spread"), (10, "within spread"), (31, "above spread")]
)
def test_the_verdict_places_the_median_among_the_peers_seeds(bench, median, said):
    theirs = {"min": 10, "max": 30}
    assert bench("learning").verdict({"median": median}, theirs) == said


def test_floats_are_rounded_wherever_they_are(bench):
    assert bench("common")._rounded({"a": [1.23456789, (2,)], "b": "x"}) == {
        "a": [1.23457, [2]],
        "b": "x",
    }


def test_success_is_drawn_over_the_steps_that_a_version_was_trained_on(bench):
    rows = [
        {"version": n + 1, "env_steps": 100 * (n + 1), "eval/version": v, "eval/success_once": s}
        for n, v, s in ((0, 0, 0.2), (3, 2, 0.5), (5, 6, 0.9))
    ]
    rows.insert(1, {"version": 2, "env_steps": 200})
    assert bench("grpo").curve_of(rows) == [(0, 0.2), (200, 0.5), (600, 0.9)]


def test_the_cost_of_tracing_is_found_in_its_three_parts(bench):
    overhead = bench("trace_overhead")

    def visit(state: str, drift: float) -> object:
        """Iterations of 10 ms: recording adds 2 %, five viewers 1 %, a status 4 ms."""
        rows = [
            overhead.Row(
                ended_s=n * 0.01,
                cpu_s=0.01
                * drift
                * (1.02 if n % 4 in (0, 3) else 1.0)
                * (1.01 if state == "five" else 1.0)
                + (0.004 * drift if n % 20 == 5 else 0.0),
                recorded=n % 4 in (0, 3),
                statuses=int(n % 20 == 5),
            )
            for n in range(80)
        ]
        return overhead.Visit(state=state, rows=rows)

    names = ["none", "one", "none", "five", "none", "stalled", "none"]
    rounds = [
        [visit(name, 1.0 + 0.01 * at + 0.1 * turn) for at, name in enumerate(names)]
        for turn in range(6)
    ]
    told = overhead.costs(rounds)
    assert told["none"]["recording"] == pytest.approx(0.02, abs=1e-3)
    assert told["one"]["viewers"] == pytest.approx(0.0, abs=1e-3)
    assert told["five"]["viewers"] == pytest.approx(0.01, abs=1e-3)
    assert told["one"]["statuses"] == pytest.approx(0.4 / 20, abs=1e-3)
    assert told["five"]["slowdown"] == pytest.approx(1.02 * 1.01 * 1.02 - 1, abs=2e-3)
    low, high = told["five"]["interval"]
    assert low <= told["five"]["slowdown"] <= high
