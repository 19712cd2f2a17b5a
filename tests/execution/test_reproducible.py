"""Same seed, exact lag: bit-identical weights and statistics, whatever runs where."""

import numpy as np
import pytest

from rlinf_async.execution.checkpoint import read_checkpoint
from rlinf_async.hardware.devices import available_cores
from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process

SMALL = (
    *("--env-count", "10", "--cell", "3", "--horizon", "16", "--minibatch", "40"),
    *("--epochs", "2", "--iterations", "5"),
)
CORES = available_cores()
VARIANTS = (  # on two cores; disaggregated is one of those that hosts are rearranged to below
    ("--mode", "collocated", "--hosts", "2"),
    ("--mode", "collocated", "--hosts", "4", "--policy", "central", "--poison"),
    ("--placement", f"render={CORES[0]}; rollout+train={CORES[-1]}; depth=1"),
    ("--mode", "hybrid", "--hosts", "2", "--policy", "central", "--depth", "2"),
)


def trained(launch, *options: str) -> dict[str, np.ndarray]:
    """Weights, statistics and optimizer state after a run."""
    run = launch(EXAMPLE, *SMALL, *options)
    assert run.finish() == 0, run.stderr
    found = read_checkpoint(run.run_dir / "checkpoint")
    return {"parameters": found.parameters, **found.statistics, **found.optimizer}


def parameters_of(run) -> bytes:
    """The bits of the weights after a run."""
    assert run.finish() == 0, run.stderr
    return read_checkpoint(run.run_dir / "checkpoint").parameters.tobytes()


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether all bits are equal."""
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )


# InvertedPendulum's episodes end within segments; HalfCheetah's never do. Together they take every
# variant once; the slow tests are the whole product.
@pytest.mark.parametrize(
    ("env", "max_lag", "variants"),
    [
        ("HalfCheetah-v5", 0, VARIANTS[1:3]),
        ("InvertedPendulum-v5", 1, (VARIANTS[0], VARIANTS[3])),
        pytest.param("HalfCheetah-v5", 0, VARIANTS, marks=pytest.mark.slow),
        pytest.param("InvertedPendulum-v5", 1, VARIANTS, marks=pytest.mark.slow),
        pytest.param("InvertedPendulum-v5", 3, VARIANTS, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(180)
def test_every_mode_trains_the_same_bits(launch, env, max_lag, variants):
    case = ("--env", env, "--max-lag", str(max_lag))
    expected = trained(launch, *case, "--mode", "serial")
    assert all(np.isfinite(values).all() for values in expected.values())
    for variant in variants:
        assert same(trained(launch, *case, *variant), expected), variant


def test_rearranging_the_hosts_between_iterations_changes_no_bit(launch):
    options = ("--cell", "3", "--hosts", "2")
    expected = parameters_of(launch("switching.py", "--mode", "serial", "--cell", "3"))
    assert parameters_of(launch("switching.py", "--mode", "auto", *options)) == expected
    central = ("--policy", "central", "--depth", "1")
    assert parameters_of(launch("switching.py", "--mode", "auto", *options, *central)) == expected


def test_seed_and_lag_change_the_numbers_and_a_repeated_run_does_not(launch):
    case = ("--env", "InvertedPendulum-v5", "--mode", "serial")
    once = trained(launch, *case, "--max-lag", "1", "--seed", "3")
    again = trained(launch, *case, "--max-lag", "1", "--seed", "3")
    other_seed = trained(launch, *case, "--max-lag", "1", "--seed", "4")
    other_lag = trained(launch, *case, "--max-lag", "0", "--seed", "3")
    assert same(once, again)
    assert not np.array_equal(once["parameters"], other_seed["parameters"])
    assert not np.array_equal(once["parameters"], other_lag["parameters"])


def test_a_torch_policy_and_a_loss_of_the_user_s_own_are_reproducible_too(launch):
    runs = [
        launch("versions.py", "--module", "--mode", mode, "--max-lag", "1", "--cell", "3")
        for mode in ("serial", "disaggregated")
    ]
    found = []
    for run in runs:
        assert run.finish() == 0, run.stderr
        found.append(read_checkpoint(run.run_dir / "checkpoint"))
    assert found[0].parameters.tobytes() == found[1].parameters.tobytes()
    assert np.rint(found[0].parameters) == 8


def test_hosts_that_are_fixed_cannot_be_pinned(launch):
    run = launch("switching.py", "--mode", "auto", "--max-lag", "0")
    assert run.finish() == 2
    assert "expected a run of --mode auto with max_lag > 0" in run.stderr


def test_a_gradient_s_shards_are_the_same_bits_wherever_they_are_computed(launch):
    expected = parameters_of(launch("sharded.py", "--mode", "serial", "--cell", "4"))
    spread = launch("sharded.py", "--mode", "collocated", "--hosts", "2", "--cell", "4")
    assert parameters_of(spread) == expected
    assert "gradient@host-1" in (spread.run_dir / "metrics.jsonl").read_text()


def test_what_fails_in_one_shard_is_what_the_run_reports(launch):
    run = launch("sharded.py", "--mode", "collocated", "--hosts", "2", "--cell", "4", "--fails")
    assert run.finish() == 1
    assert "ValueError: planted in a follower" in run.stderr
