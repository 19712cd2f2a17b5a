"""The examples of policies run to their end; what they learn is recorded in docs/results."""

import pytest

from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process


@pytest.mark.parametrize("core", ["gru", pytest.param("none", marks=pytest.mark.slow)])
def test_the_memory_example_runs(launch, core):
    options = ("--core", core, "--env-count", "8", "--iterations", "2", "--mode", "serial")
    run = launch(EXAMPLE.with_name("recurrent_memory.py"), *options)
    assert run.finish() == 0, run.stderr
    assert run.iterations() == 2
