"""Chunks and memories through the whole engine: counts, first ratios, the same bits anywhere."""

import orjson
import pytest

from rlinf_async.execution.checkpoint import read_checkpoint
from tests.execution.test_reproducible import VARIANTS, same

pytestmark = pytest.mark.process

CASES = (
    pytest.param(("--chunk", "3", "--recurrent", "--max-lag", "1"), id="both"),
    pytest.param(("--chunk", "3"), id="chunks", marks=pytest.mark.slow),
    pytest.param(("--recurrent",), id="memory", marks=pytest.mark.slow),
)


def trained(launch, *options):
    """The checkpoint's arrays and the metrics of each iteration."""
    run = launch("remembering.py", "--cell", "3", *options)
    assert run.finish() == 0, run.stderr
    found = read_checkpoint(run.run_dir / "checkpoint")
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    arrays = {"parameters": found.parameters, **found.statistics, **found.optimizer}
    return arrays, [orjson.loads(line) for line in lines]


@pytest.mark.parametrize("case", CASES)
def test_every_mode_trains_the_same_bits(launch, case):
    expected, metrics = trained(launch, *case, "--mode", "serial")
    assert metrics[0]["train/first_log_ratio_max"] < 1e-5
    # The one that differs most from serial: other processes, and the policy away from what it sees.
    assert same(trained(launch, *case, *VARIANTS[3])[0], expected)


def test_steps_and_episodes_are_counted_in_simulator_steps(launch):
    _, metrics = trained(launch, "--chunk", "3", "--mode", "serial")
    assert metrics[0]["train/first_log_ratio_max"] < 1e-5
    # Episodes of 7 steps in chunks of 3 take three chunks: 3 + 3 + 1 steps. In 24 chunk-steps of
    # 8 slots that are 8 episodes each.
    assert metrics[-1]["env_steps"] == 8 * 8 * 7
    assert {line["length_mean"] for line in metrics} == {7.0}
    assert {line["return_mean"] for line in metrics} == {7.0}


def test_a_minibatch_of_partial_sequences_is_refused(launch):
    run = launch("remembering.py", "--recurrent", "--minibatch", "20", "--mode", "serial")
    assert run.finish() == 2
    assert "whole sequences; expected a minibatch that is a multiple of the horizon 8" in run.stderr
    assert "use minibatch=16" in run.stderr
