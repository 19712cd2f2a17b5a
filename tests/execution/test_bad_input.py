"""Input that cannot work ends in one clear message and exit code 2, and leaves nothing."""

import resource
import subprocess

import pytest

from tests.conftest import EXAMPLE

pytestmark = pytest.mark.process

BY_SCRIPT = {
    "lambda_env": ("run.envs: a lambda", "define it at the top level"),
    "closure_env": ("make_env is defined inside a function (a closure)", "at the top level"),
    "positional_env": ("has positional arguments; use keywords",),
    "local_worker": ("Local is defined inside a function (a closure)", "at the top level"),
    "no_such_worker": ("has no 'CountEnvv'", "did you mean 'CountEnv'?"),
    "no_such_module": ("module 'no.such.module' cannot be imported: ModuleNotFoundError",),
    "no_worker": ("expected a subclass of rlinf_async.Worker",),
    "local_policy": ("Local is defined inside a function (a closure)", "at the top level"),
    "unknown_policy_argument": ("unexpected keyword argument 'hiden'",),
    "lambda_loss": ("pipe.train(loss): a lambda", "define it at the top level"),
    "minibatch": ("minibatch; expected 1 to 16", "got 17", "use minibatch=16"),
    "env_steps": ("env_steps = environments x horizon = 4 x 4 = 16", "got 17", "env_steps=16"),
    "second_pipeline": ("this run has a pipeline already",),
    "pack_first": ("there is no rollout stage yet; call pipe.rollout first",),
}
BY_OPTION = {
    "unknown environment": (("--env", "HalfCheeta-v5"), "did you mean 'HalfCheetah-v5'"),
    "unknown module": (("--env", "no_such_module:Thing-v0"), "cannot be imported"),
    "no environments": (("--env-count", "0"), "count; expected at least 1; got 0"),
    "no horizon": (("--horizon", "0"), "horizon; expected at least 1; got 0"),
    "no iterations": (("--iterations", "0"), "iterations; expected at least 1; got 0"),
    "negative lag": (("--max-lag", "-1"), "max_lag; expected 0 or more; got -1"),
    "too many hosts": (("--hosts", "9"), "use hosts = 4"),
    "hosts in serial mode": (("--mode", "serial", "--hosts", "2"), "use mode collocated"),
    "core of another": (("--devices", "4095"), "this process may not use core 4095"),
    "free lag without correction": (("--lag", "free", "--max-lag", "1"), "needs a correction"),
    "no such checkpoint": (("--init-from", "/no/such/folder"), "/no/such/folder"),
}


def refused(run, *expected: str) -> str:
    """Wait for the end of `run` and check that it was refused in one message."""
    assert run.finish() == 2, run.stderr
    first = run.stderr.splitlines()[0]
    assert first.startswith("error: ")
    for part in expected:
        assert part in first
    assert run.stderr.count("error: ") == 1
    assert "Traceback" not in run.stderr
    assert "RuntimeWarning" not in run.stderr
    assert not run.run_dir.exists(), "a second try with the same --run-dir must find it empty"
    return first


@pytest.mark.parametrize("what", BY_SCRIPT)
def test_script_that_cannot_work_is_refused(launch, what):
    refused(launch("refused.py", "--what", what), *BY_SCRIPT[what])


@pytest.mark.parametrize("what", BY_OPTION)
def test_option_that_cannot_work_is_refused(launch, what):
    options, expected = BY_OPTION[what]
    small = ("--env-count", "8", "--cell", "2", "--horizon", "4", "--minibatch", "8")
    first = refused(launch(EXAMPLE, "--env", "InvertedPendulum-v5", *small, *options), expected)
    assert "$call" not in first


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_environment_that_cannot_be_built_is_refused_before_any_worker_starts(launch, how):
    run = launch("dying.py", "--where", "__init__", "--how", how)
    first = refused(run, "DieEnv")
    assert ("RuntimeError: died on purpose" if how == "raise" else "exited with code 1") in first
    assert "$call" not in first


def test_too_little_memory_is_refused_with_the_numbers(launch):
    run = launch(EXAMPLE, "--env-count", "100000", "--horizon", "100000", "--cell", "1000")
    refused(run, "too little memory", "bytes (100 rows)", "bytes free", "use fewer environments")


def test_temporary_folder_too_long_for_sockets_is_refused(launch, tmp_path):
    long = tmp_path / ("x" * 150)
    long.mkdir()
    run = launch("faults.py", environment={"TMPDIR": str(long)})
    refused(run, "TMPDIR", "at most 107 bytes", "TMPDIR=/tmp")
    assert not list(long.iterdir())


def test_too_few_file_descriptors_are_refused(launch):
    run = launch(
        EXAMPLE,
        *("--env", "InvertedPendulum-v5", "--env-count", "32", "--cell", "1", "--hosts", "32"),
        prefix=("prlimit", "--nofile=100:100"),
    )
    refused(run, "file descriptors", "100 (hard limit)", "ulimit -n")


def test_soft_limit_of_file_descriptors_is_raised_where_that_helps(launch):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard >= 256
    run = launch("faults.py", "--iterations", "1", prefix=("prlimit", f"--nofile=40:{hard}"))
    assert run.finish() == 0, run.stderr


def test_run_folder_that_cannot_be_written_is_refused(launch):
    # /proc refuses new files to root as well, which mode bits do not.
    run = launch("faults.py", run_dir="/proc/sys/no-run-here")
    assert run.finish() == 2
    assert run.stderr.startswith("error: --run-dir: cannot make a run folder at /proc/sys/no-run")
    assert "choose a folder that you may write" in run.stderr


def test_run_folder_of_an_earlier_run_is_refused(launch, tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    run = launch("faults.py", run_dir=tmp_path)
    assert run.finish() == 2
    assert "exists and is not empty" in run.stderr


def test_nothing_is_wrong_with_the_script_itself(launch):
    run = launch("refused.py", stdin=subprocess.DEVNULL)
    assert run.finish() == 0, run.stderr
