"""A worker, the controller or the user ends a run: what is said, how soon, and what is left."""

import asyncio
import os
import pty
import signal
import time
from types import SimpleNamespace

import pytest

from rlinf_async.communication.calls import Caller
from rlinf_async.errors import PeerGone, WorkerLost
from rlinf_async.execution.hosts import ProcessHost
from tests.conftest import EXAMPLE
from tests.fixtures.loops import in_loop

pytestmark = pytest.mark.process

SMALL = (
    *("--env", "InvertedPendulum-v5", "--env-count", "8", "--cell", "2", "--horizon", "8"),
    *("--minibatch", "32", "--epochs", "1", "--iterations", "1000000"),
)
VICTIMS = {
    "collocated host with the learner": ("host-0", "--mode", "collocated", "--hosts", "2"),
    "collocated host": ("host-1", "--mode", "collocated", "--hosts", "2"),
    "disaggregated rollout host": ("host-0", "--mode", "disaggregated", "--hosts", "1"),
    "train host": ("train", "--mode", "disaggregated", "--hosts", "1", "--max-lag", "1"),
    "render host": ("host-1", "--mode", "collocated", "--hosts", "2", "--policy", "central"),
    "policy host": ("policy", "--mode", "disaggregated", "--hosts", "2", "--policy", "central"),
}


@pytest.mark.parametrize("kind", VICTIMS)
def test_killed_worker_is_named_within_two_seconds(launch, kind):
    victim, *options = VICTIMS[kind]
    run = launch(EXAMPLE, *SMALL, *options)
    assert run.wait_iterations(2), run.stderr
    killed_s = time.monotonic()
    os.kill(run.hosts()[victim], signal.SIGKILL)

    assert run.finish() == 1
    assert run.error_seen_s() - killed_s < 2.0
    first = run.stderr.splitlines()[0]
    assert first.startswith(f"error: worker {victim} (stage ")
    assert "was killed by SIGKILL" in first
    assert " during " in first
    assert run.stderr.count("error: ") == 1


@pytest.mark.parametrize("mode", ["serial", "collocated"])
def test_environment_that_raises_is_reported_with_its_traceback_and_slot(launch, mode):
    run = launch("dying.py", "--how", "raise", "--mode", mode)
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert first.startswith("error: worker rollout in ")
    assert "failed in rollout.collect: RuntimeError: died on purpose in step" in first
    assert "in _maybe_die" in run.stderr
    assert "raised by DieEnv, slot 0, step 10 of its episode" in run.stderr
    assert run.stderr.count("error: ") == 1


@pytest.mark.parametrize(
    ("how", "fate"),
    [
        ("exit", "exited with code 1"),
        ("SIGKILL", "was killed by SIGKILL"),
        ("SIGSEGV", "was killed by SIGSEGV (a crash in native code)"),
    ],
)
def test_environment_that_ends_its_process_is_reported_with_the_command(launch, how, fate):
    run = launch("dying.py", "--how", how)
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert first.startswith(f"error: worker host-0 (stage rollout) {fate}")
    assert " during rollout.collect(" in first
    assert "batch=2" in first
    assert "in step 10 of the episode of slot 0" in first
    if how == "SIGSEGV":
        assert "in _maybe_die" in run.stderr


def test_environment_that_sleeps_for_ever_is_reported_with_its_stack(launch):
    run = launch("dying.py", "--how", "sleep", "--reply-timeout-s", "2")
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert "gave up after 2 s waiting for host-0 to run rollout.collect" in first
    assert ", in step 10 of the episode of slot 0" in first
    assert "in _maybe_die" in run.stderr


@pytest.mark.parametrize("policy", ["beside", pytest.param("central", marks=pytest.mark.slow)])
def test_a_step_that_takes_many_times_longer_than_any_before_is_named(launch, policy):
    run = launch("dying.py", "--how", "sleep", "--env-timeout-s", "1", "--policy", policy)
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert "EnvStuck: step 10 of the episode of slot 0 has taken " in first
    assert "its limit is 1 s; the slowest step so far took " in first
    assert "in _maybe_die" in run.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_step_that_lets_no_other_thread_run_is_named_by_the_silence_of_its_host(launch):
    run = launch("dying.py", "--how", "hold", "--env-timeout-s", "1")
    assert run.finish(90) == 1
    first = run.stderr.splitlines()[0]
    assert "worker host-0 (stage rollout) was silent for 30." in first
    assert ", in step 10 of the episode of slot 0" in first


def test_first_reset_that_sleeps_for_ever_ends_at_the_start_limit(launch, tmp_path):
    tally = ("--after", "2", "--tally", str(tmp_path / "tally"))
    limit = ("--start-timeout-s", "2")
    run = launch("dying.py", "--how", "sleep", "--where", "reset", *tally, *limit)
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert "gave up after 2 s waiting for host-0" in first
    assert "in _maybe_die" in run.stderr


@pytest.mark.parametrize(
    ("how", "where", "expected"),
    [
        ("raise", "reset", "RuntimeError: died on purpose in reset"),
        pytest.param("exit", "reset", "exited with code 1", marks=pytest.mark.slow),
        ("exit", "__init__", "exited with code 1"),
    ],
)
def test_environment_that_dies_while_its_worker_is_built_names_the_render_stage(
    launch, tmp_path, how, where, expected
):
    # The first environment is the probe's, the second one works, the third one dies.
    tally = ("--after", "2", "--tally", str(tmp_path / "tally"))
    run = launch("dying.py", "--how", how, "--where", where, *tally)
    assert run.finish() == 1
    first = run.stderr.splitlines()[0]
    assert first.startswith("error: worker ")
    assert "host-0" in first
    assert "stage render" in first
    assert expected in first


@in_loop
async def test_call_that_finds_its_link_broken_reports_the_end_of_the_process():
    class BrokenLink:
        def send(self, peer, message, frames=()):
            raise PeerGone(f"{peer} is not connected")

    link = BrokenLink()
    host = ProcessHost(SimpleNamespace(name="host-0"), link, Caller(link), "rollout")
    lost = WorkerLost("host-0", stage="rollout", command="rollout.collect", exit_code=-9)
    # The kernel closes a dying process's sockets before anybody can see that it has ended.
    asyncio.get_running_loop().call_soon(host.lose, lost)
    with pytest.raises(WorkerLost, match="was killed by SIGKILL"):
        await host.call("rollout", "collect", {}, deadline_s=5.0)


def test_environment_whose_constructor_raises_in_a_worker_is_reported(launch, tmp_path):
    tally = ("--after", "2", "--tally", str(tmp_path / "tally"))
    run = launch("dying.py", "--how", "raise", "--where", "__init__", *tally)
    assert run.finish() in (1, 2)
    assert "'LaterEnv': its constructor raised RuntimeError: died on purpose" in run.stderr
    assert run.stderr.count("error: ") == 1


def test_ctrl_c_from_a_terminal_ends_the_run(launch):
    controller_end, terminal = pty.openpty()
    try:
        # setsid makes the terminal the run's own, so that typing ^C signals its whole group.
        prefix = ("setsid", "--ctty", "--wait")
        run = launch(EXAMPLE, *SMALL, stdin=terminal, prefix=prefix)
        assert run.wait_iterations(1), run.stderr
        os.write(controller_end, b"\x03")
        assert run.finish(10) == 130
    finally:
        os.close(controller_end)
        os.close(terminal)
    assert run.stderr.startswith("interrupted by SIGINT; what was written is in ")
    assert (run.run_dir / "metrics.jsonl").exists()


def test_sigterm_ends_the_run_with_its_own_code(launch):
    run = launch(EXAMPLE, *SMALL, "--mode", "disaggregated", "--max-lag", "1")
    assert run.wait_iterations(1), run.stderr
    run.process.terminate()
    assert run.finish(10) == 143


def test_ctrl_c_ends_the_probe_too(launch):
    run = launch("dying.py", "--where", "__init__", "--how", "sleep")
    assert run.wait_until(lambda: len(run.pids()) == 2)
    run.interrupt()
    assert run.finish(5) == 130


def test_second_ctrl_c_does_not_wait_for_a_stuck_worker(launch):
    run = launch("dying.py", "--how", "sleep")
    assert run.wait_iterations(2), run.stderr
    log = run.run_dir / "logs" / "controller.jsonl"
    run.interrupt()
    assert run.wait_until(lambda: b'"interrupted"' in log.read_bytes())
    again_s = time.monotonic()
    run.interrupt()
    assert run.finish(5) == 130
    assert time.monotonic() - again_s < 1.0


@pytest.mark.parametrize(
    "mode", ["disaggregated", pytest.param("collocated", marks=pytest.mark.slow)]
)
def test_hosts_end_with_a_killed_controller_and_the_next_start_tidies_up(launch, tmp_path, mode):
    run = launch(EXAMPLE, *SMALL, "--mode", mode, "--policy", "central", "--hosts", "2")
    assert run.wait_iterations(1), run.stderr
    run.process.kill()
    run.process.wait()
    assert not run.left_behind_processes(grace_s=2.0)
    assert [path.name.startswith("rlinf-") for path in run.folders()] == [True]

    after = launch("faults.py", "--iterations", "1", "--mode", "serial", temporary=run.temporary)
    assert after.finish() == 0
    assert run.folders() == []


def test_a_controller_killed_while_it_probes_leaves_nothing_after_the_next_start(launch):
    run = launch("dying.py", "--where", "__init__", "--how", "sleep")
    assert run.wait_until(lambda: len(run.pids()) == 2)
    run.process.kill()
    run.process.wait()
    assert not run.left_behind_processes(grace_s=2.0)

    after = launch("faults.py", "--iterations", "1", "--mode", "serial", temporary=run.temporary)
    assert after.finish() == 0
    assert run.folders() == []
