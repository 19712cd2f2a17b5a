"""Which weights act: stored versions are the true ones, and none is older than `max_lag` allows."""

import pytest

from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process


def lags(run) -> list[tuple[int, ...]]:
    """(batch, least lag, most lag, mixed segments), as the script's worker saw each batch."""
    return [tuple(map(int, line.split()[1:])) for line in run.out if line.startswith("lag")]


@pytest.mark.parametrize(("mode", "max_lag"), [("serial", 2), ("disaggregated", 1)])
def test_exact_lag_acts_with_one_version_that_is_max_lag_old(launch, mode, max_lag):
    run = launch("versions.py", "--mode", mode, "--max-lag", str(max_lag), "--cell", "2")
    assert run.finish() == 0, run.stderr
    expected = [(n, min(n, max_lag), min(n, max_lag), 0) for n in range(8)]
    assert lags(run) == expected


@pytest.mark.parametrize("policy", ["beside", "central"])
def test_free_lag_takes_new_versions_at_once_and_none_is_too_old(launch, policy):
    options = ("--mode", "disaggregated", "--lag", "free", "--max-lag", "2", "--cell", "2")
    slow = ("--step-s", "0.003", "--iterations", "10", "--policy", policy)
    run = launch("versions.py", *options, *slow)
    assert run.finish() == 0, run.stderr
    seen = lags(run)
    assert [batch for batch, *_ in seen] == list(range(10))
    assert all(0 <= least <= most <= 2 for _, least, most, _ in seen)
    assert sum(mixed for *_, mixed in seen) > 0, "no segment ever took a new version"


@pytest.mark.parametrize("lag", ["exact", pytest.param("free", marks=pytest.mark.slow)])
def test_lag_without_a_correction_is_refused(launch, lag):
    run = launch("unclipped.py", "--lag", lag)
    assert run.finish() == 2
    assert "PPOLoss(correction='decoupled') or advantages=vtrace(...)" in run.stderr
    assert run.stderr.count("error: ") == 1


@pytest.mark.parametrize(
    "correction", ["decoupled", pytest.param("vtrace", marks=pytest.mark.slow)]
)
def test_free_lag_trains_with_a_named_correction(launch, correction):
    small = ("--env", "InvertedPendulum-v5", "--env-count", "8", "--cell", "2", "--horizon", "8")
    run = launch(
        EXAMPLE,
        *(*small, "--minibatch", "32", "--epochs", "2", "--iterations", "4", "--max-lag", "2"),
        *("--mode", "disaggregated", "--lag", "free", "--correction", correction),
    )
    assert run.finish() == 0, run.stderr
    assert run.iterations() == 4
