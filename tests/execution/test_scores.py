"""Mean, spread and intervals of an evaluation."""

import json
import statistics

import numpy as np
import orjson
import pytest

from rlinf_async.execution.records import Episode
from rlinf_async.execution.scores import EvaluationReport, Rate, Spread, t_quantile_975


def report(*returns: float, success: bool | None = None) -> EvaluationReport:
    episodes = tuple(
        Episode(
            episode_return=value,
            length=10 + number,
            slot=0,
            number=number,
            seed=number,
            first_version=3,
            last_version=3,
            success_once=success,
            success_at_end=success,
        )
        for number, value in enumerate(returns)
    )
    return EvaluationReport(env="E", version=3, seed=0, sampled=False, episodes=episodes)


def test_spread_of_several_numbers():
    spread = Spread.of([1.0, 2.0, 3.0, 6.0])
    assert (spread.mean, spread.min, spread.max) == (3.0, 1.0, 6.0)
    assert spread.std == statistics.stdev([1, 2, 3, 6])
    half = 3.1824 * spread.std / 2.0
    assert spread.interval_95 == pytest.approx((3.0 - half, 3.0 + half))


def test_one_number_has_no_interval():
    spread = Spread.of([4.0])
    assert (spread.mean, spread.std, spread.interval_95) == (4.0, 0.0, None)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (5, 2.5706), (11, 2.2010), (15, 2.1314), (30, 2.0423), (100, 1.9840)],
)
def test_student_s_quantile_is_that_of_the_tables(freedom, expected):
    assert t_quantile_975(freedom) == pytest.approx(expected, abs=2e-4)


def test_the_interval_covers_the_true_mean_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    samples = rng.normal(7.0, 2.0, (4000, 5))
    intervals = [Spread.of(row.tolist()).interval_95 for row in samples]
    covered = sum(low <= 7.0 <= high for low, high in intervals)  # type: ignore[misc]
    assert 0.94 < covered / 4000 < 0.96


def test_rates_have_wilson_s_interval():
    assert Rate.of([True] * 5 + [False] * 5).interval_95 == pytest.approx(
        (0.2366, 0.7634), abs=1e-4
    )
    none = Rate.of([False] * 10)
    assert (none.rate, none.count) == (0.0, 0)
    assert none.interval_95 == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert Rate.of([True] * 10).interval_95 == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_success_is_absent_where_none_is_reported():
    plain = report(1.0, 3.0)
    assert plain.success_once is None
    assert set(plain.metrics()) == {
        "eval/version", "eval/return_mean", "eval/return_std", "eval/length_mean",
    }  # fmt: skip
    assert report(1.0, success=True).metrics()["eval/success_once"] == 1.0


def test_the_record_is_json_and_holds_every_episode():
    written = json.loads(orjson.dumps(report(1.0, 3.0, success=False).to_json()))
    assert written["return"]["mean"] == 2.0
    assert written["success_at_end"]["rate"] == 0.0
    assert [episode["return"] for episode in written["episodes"]] == [1.0, 3.0]
    assert written["episodes"][1]["seed"] == 1
    assert "slot" not in written["episodes"][0]
