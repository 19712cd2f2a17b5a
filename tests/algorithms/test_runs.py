"""Whole runs: imitation with an expert in a host, and the examples of this package."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process


def test_dagger_comes_nearer_to_the_expert(launch):
    run = launch("imitating.py", "--mode", "collocated")
    assert run.finish() == 0, run.stderr
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    records = [each for line in lines if "train/disagreement" in (each := json.loads(line))]
    assert len(records) == 6
    entries = [each["train/imitated_entries"] for each in records]
    assert [after - before for before, after in itertools.pairwise(entries)] == [64.0] * 5
    assert entries[0] > 64
    assert records[-1]["train/policy_loss"] < records[0]["train/policy_loss"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("impala_vtrace.py", ("--minibatch", "64")),
        ("async_ppo_mujoco.py", ("--max-lag", "1", "--correction", "interpolate")),
    ],
)
def test_an_example_runs(launch, name, options):
    sizes = ("--env-count", "8", "--iterations", "3", "--mode", "serial")
    run = launch(EXAMPLE.with_name(name), *sizes, *options)
    assert run.finish() == 0, run.stderr
    assert run.iterations() == 3
