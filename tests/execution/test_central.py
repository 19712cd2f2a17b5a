"""A central policy: one process acts for the environments of all others."""

import json

import pytest

from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process

SMALL = (
    *("--env", "InvertedPendulum-v5", "--env-count", "8", "--cell", "2", "--horizon", "8"),
    *("--minibatch", "32", "--epochs", "1"),
)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param("collocated", {"host-0", "host-1", "policy"}, marks=pytest.mark.slow),
        ("disaggregated", {"host-0", "host-1", "policy", "train"}),
    ],
)
def test_central_policy_has_a_process_of_its_own(launch, mode, expected):
    options = ("--policy", "central", "--mode", mode, "--hosts", "2", "--iterations", "1000000")
    run = launch(EXAMPLE, *SMALL, *options)
    assert run.wait_iterations(1), run.stderr
    assert set(run.hosts()) == expected
    run.interrupt()
    assert run.finish(10) == 130


def test_environment_that_raises_behind_a_central_policy_is_named(launch):
    run = launch("dying.py", "--how", "raise", "--policy", "central", "--hosts", "1")
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert "RuntimeError: died on purpose in step" in first
    assert "stage render" in first
    assert run.stderr.count("error: ") == 1


def test_environment_that_hangs_behind_a_central_policy_is_reported_with_its_stack(launch):
    options = ("--policy", "central", "--hosts", "1", "--reply-timeout-s", "2")
    run = launch("dying.py", "--how", "sleep", *options)
    assert run.finish() == 1
    assert "host-0" in run.stderr.splitlines()[0]
    assert "in _maybe_die" in run.stderr


def test_serial_mode_says_that_central_changes_nothing(launch):
    run = launch(EXAMPLE, *SMALL, "--policy", "central", "--mode", "serial", "--iterations", "1")
    assert run.finish() == 0, run.stderr
    log = (run.run_dir / "logs" / "controller.jsonl").read_text()
    assert "policy central is the same as beside in one process" in log


def test_cells_that_are_ready_share_a_policy_call_where_bits_may_vary(launch):
    merged = ("--no-deterministic", "--merge-slots", "4", "--merge-wait-ms", "5")
    options = ("--policy", "central", "--mode", "collocated", "--hosts", "1", "--iterations", "3")
    run = launch(EXAMPLE, *SMALL, *options, *merged)
    assert run.finish() == 0, run.stderr
    rows = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    # What was stored belongs to what acted: the learner computes the same log-probs.
    assert max(row["train/first_log_ratio_max"] for row in rows) < 1e-5
