import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading

import pytest
import uvloop

from rlinf_async.errors import BadInput, PeerTimeout
from rlinf_async.hardware.devices import available_cores
from rlinf_async.hardware.process import HostProcess

pytestmark = pytest.mark.process

SETTLE = "from rlinf_async.hardware.child import *; settle_from_environment()\n"
SLEEP = SETTLE + "print('ready', flush=True)\nimport signal\nwhile True: signal.pause()\n"


@pytest.fixture
def spawn(tmp_path):
    with contextlib.ExitStack() as stack:

        def spawn(code, name="h0", **options):
            options = {
                "cores": available_cores()[:1],
                "threads": 1,
                "environment": {},
                "log_folder": tmp_path,
                **options,
            }
            return stack.enter_context(
                contextlib.closing(HostProcess.spawn(name, ["-c", code], **options))
            )

        yield spawn


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    return uvloop.run if request.param == "uvloop" else asyncio.run


def until_printed(process, text):
    """Wait until the host's log holds `text`; a host that has ended ends the wait."""
    poller = select.poll()
    poller.register(process.pidfd, select.POLLIN)
    for _ in range(3000):
        if text in process.stderr_tail():
            return
        if poller.poll(5):
            break
    assert text in process.stderr_tail()


def ended(pidfd, limit_s=10.0):
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(limit_s * 1000))


def test_exit_code_and_output_are_kept(spawn):
    process = spawn("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert process.join(10) == 7
    assert process.poll() == 7
    assert process.stderr_tail().splitlines() == ["out", "err"]


def test_only_the_last_lines_are_shown(spawn):
    process = spawn("for i in range(50000): print('line', i)")
    process.join(10)
    assert process.stderr_tail(2) == "line 49998\nline 49999"


def test_a_signal_is_a_negative_exit_code(spawn):
    process = spawn(SLEEP)
    until_printed(process, "ready")
    process.kill()
    assert process.join(10) == -signal.SIGKILL


def test_sigterm_ends_and_sigint_is_ignored(spawn):
    process = spawn(SLEEP)
    until_printed(process, "ready")
    os.kill(process.pid, signal.SIGINT)
    assert process.poll() is None
    process.terminate()
    assert process.join(10) == -signal.SIGTERM


def test_a_crash_in_native_code_leaves_a_stack(spawn):
    process = spawn(SETTLE + "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert process.join(10) == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in process.stderr_tail(30)


def test_the_child_has_its_cores_and_threads_before_it_imports_anything(spawn):
    code = SETTLE + (
        "import os, sys\n"
        "assert 'numpy' not in sys.modules\n"
        "print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'],"
        " os.environ['OPENBLAS_NUM_THREADS'], os.environ['EXTRA'], os.getpgid(0) == os.getpid())"
    )
    core = available_cores()[-1]
    process = spawn(code, cores=[core], threads=3, environment={"EXTRA": "x"})
    process.join(10)
    assert process.stderr_tail() == f"[{core}] 3 3 x True"


def test_a_signal_mask_is_not_inherited(spawn):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process = spawn(SLEEP)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    until_printed(process, "ready")
    process.terminate()
    assert process.join(10) == -signal.SIGTERM


def test_the_loop_hears_of_an_exit(run, spawn):
    async def main():
        process = spawn(SLEEP)
        heard = asyncio.get_running_loop().create_future()
        process.on_exit(asyncio.get_running_loop(), lambda p: heard.set_result((p, p.poll())))
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            return (await heard) == (process, -signal.SIGKILL)

    assert run(main())


def test_the_loop_hears_of_an_exit_that_was_earlier(run, spawn):
    async def main():
        process = spawn("raise SystemExit(3)")
        process.join(10)
        heard = asyncio.get_running_loop().create_future()
        process.on_exit(asyncio.get_running_loop(), lambda p: heard.set_result(p.poll()))
        async with asyncio.timeout(10):
            return await heard

    assert run(main()) == 3


def test_waiting_for_an_exit_and_being_told_of_it_go_together(run, spawn):
    async def main():
        process = spawn(SLEEP)
        told = []
        process.on_exit(asyncio.get_running_loop(), told.append)
        with pytest.raises(PeerTimeout, match=r"after 0\.01 s waiting for host h0 .* to exit"):
            await process.wait_exit(0.01)
        process.kill()
        code = await process.wait_exit(10)
        return code, told == [process]

    assert run(main()) == (-signal.SIGKILL, True)


def test_joining_has_a_deadline(spawn):
    with pytest.raises(PeerTimeout, match="host h0"):
        spawn(SLEEP).join(0.01)


def test_closing_kills_reaps_and_may_be_repeated(spawn):
    before = len(os.listdir("/proc/self/fd"))
    process = spawn(SLEEP)
    process.close()
    process.close()
    assert not os.path.exists(f"/proc/{process.pid}")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("how", ["host is killed", "host exits by itself"])
def test_what_a_host_started_ends_with_it(spawn, how):
    last = "signal.pause()" if how == "host is killed" else "pass"
    code = (
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"print('child', child.pid, flush=True)\n{last}\n"
    )
    process = spawn(code)
    until_printed(process, "child")
    pidfd = os.pidfd_open(int(process.stderr_tail().split()[1]))
    try:
        if how == "host is killed":
            process.kill()
        process.join(10)
        assert ended(pidfd)
    finally:
        os.close(pidfd)


def test_a_missing_interpreter_is_refused(spawn, tmp_path):
    with pytest.raises(BadInput, match="cannot start /nowhere/python: No such file"):
        spawn("", interpreter="/nowhere/python")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot write its log"):
        spawn("", log_folder=tmp_path / "file")


def test_hosts_are_started_from_the_main_thread_only(spawn):
    raised = []

    def attempt():
        try:
            spawn("")
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(10)
    assert raised == ["host h0 must be started from the main thread"]


def test_a_killed_parent_takes_its_hosts_with_it(tmp_path):
    code = (
        "import sys, signal\nfrom pathlib import Path\n"
        "from rlinf_async.hardware.process import HostProcess\n"
        f"host = HostProcess.spawn('h0', ['-c', {SLEEP!r}], cores=[], threads=1,"
        " environment={}, log_folder=Path(sys.argv[1]))\n"
        "print(host.pid, flush=True)\nsignal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    pidfd = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.communicate()
        # Also when the parent dies before the host has settled: then the host looks and leaves.
        assert ended(pidfd)
    finally:
        os.close(pidfd)


def test_a_host_whose_parent_is_gone_leaves_at_once(spawn):
    process = spawn("import os; os.environ['RLINF_PARENT'] = '1'\n" + SETTLE + "print('went on')")
    assert process.join(10) == 70
    assert process.stderr_tail() == ""


def test_a_host_can_watch_its_parent(spawn):
    code = SETTLE + (
        "import select\npoller = select.poll()\npoller.register(parent_pidfd(), select.POLLIN)\n"
        "print('parent lives' if not poller.poll(0) else 'parent gone')"
    )
    process = spawn(code)
    process.join(10)
    assert process.stderr_tail() == "parent lives"
