"""Odd environments through the whole engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlinf_async.execution.checkpoint import read_checkpoint

pytestmark = pytest.mark.process
SCRIPT = "odd_envs.py"


def parameters(launch: Any, *options: str) -> Any:
    run = launch(SCRIPT, *options)
    assert run.finish(60) == 0, run.stderr
    assert run.stderr == ""
    assert run.iterations() == 2
    return read_checkpoint(run.run_dir / "checkpoint").parameters


@pytest.mark.parametrize("mode", ["serial", "collocated"])
def test_an_environment_that_cannot_be_pickled_is_registered_in_the_script(launch, mode) -> None:
    assert np.isfinite(parameters(launch, "--kind", "registered", "--mode", mode)).all()


@pytest.mark.parametrize("chunk", ["3", pytest.param("1", marks=pytest.mark.slow)])
def test_spaces_of_every_kind_train_the_same_bits_however_they_reset(launch, chunk) -> None:
    ours = parameters(launch, "--kind", "everything", "--chunk", chunk, "--mode", "serial")
    theirs = parameters(launch, "--kind", "vectors", "--chunk", chunk)
    assert ours.tobytes() == theirs.tobytes()


def test_an_observation_that_is_not_a_number_ends_the_run_with_key_and_slot(launch) -> None:
    run = launch(SCRIPT, "--kind", "nan")
    assert run.finish(60) == 1
    expected = "nan, slot 0: observation 'state': expected a finite number; got nan at [0]"
    assert f"EnvMismatch: {expected}" in run.stderr.splitlines()[0]


def test_without_checks_the_run_goes_on(launch) -> None:
    run = launch(SCRIPT, "--kind", "nan", "--no-checks", "--mode", "serial")
    run.finish(60)
    assert "EnvMismatch" not in run.stderr


@pytest.mark.parametrize("policy", ["beside", pytest.param("central", marks=pytest.mark.slow)])
def test_a_segment_may_take_longer_than_a_reply_while_its_environments_get_on(
    launch, policy
) -> None:
    limits = ("--reply-timeout-s", "3", "--iterations", "1")
    run = launch(SCRIPT, "--kind", "slow", *limits, "--policy", policy)
    assert run.finish(60) == 0, run.stderr
