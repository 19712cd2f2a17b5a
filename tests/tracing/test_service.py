"""A run that is looked at: what viewers get, and that none of them can make it wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from rlinf_async.cli import ps, trace
from rlinf_async.communication.runtime_folder import RuntimeFolder
from rlinf_async.errors import BadInput
from rlinf_async.execution.progress import Progress
from rlinf_async.execution.trace_service import TraceService
from rlinf_async.execution.watched import Watched
from rlinf_async.tracing import wire
from rlinf_async.tracing.client import Viewer, find_run, live_runs
from rlinf_async.tracing.paths import segment_paths
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.recorder import Recorder
from tests.conftest import EXAMPLE

SMALL = (
    *("--env", "InvertedPendulum-v5", "--env-count", "8", "--cell", "2", "--horizon", "8"),
    *("--minibatch", "32", "--epochs", "1", "--iterations", "1000000"),
)


def small_run(folder: RuntimeFolder, run_dir: Path) -> SimpleNamespace:
    """What the service asks of a `Run`."""
    watched = Watched()
    ring = watched.ring("controller")
    recorder = Recorder("controller", ring.capacity, memory=ring.memory)
    progress = Progress("a run", began_s=time.monotonic(), cpu_s=lambda: 0.0)
    return SimpleNamespace(
        watched=watched,
        recorder=recorder,
        progress=progress,
        runtime_folder=folder,
        folder=SimpleNamespace(path=run_dir),
        script=None,
        options=SimpleNamespace(mode="serial", seed=0),
        status=progress.status,
        cpu_s=lambda: 0.0,
    )


@contextlib.contextmanager
def served(tmp_path: Path):
    """A service whose ticks and accepts the test makes itself, and the run it shows."""

    async def body(test) -> None:
        folder = RuntimeFolder.create()
        run = small_run(folder, tmp_path)
        service = TraceService(run)
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(service.serve())
                await asyncio.sleep(0)
                await test(service, run)
                serving.cancel()
        finally:
            run.watched.close()
            folder.remove()

    yield lambda test: asyncio.run(body(test))


def read_to_the_end(viewer: socket.socket) -> None:
    viewer.settimeout(5.0)
    with contextlib.suppress(ConnectionError):
        while viewer.recv(wire.PACKET_BYTES):
            pass


async def connected(limit_s: float = 2.0) -> Viewer:
    return await asyncio.to_thread(Viewer.connect, find_run(None), limit_s=limit_s)


def test_a_viewer_reads_the_memory_itself_and_hears_the_status(tmp_path):
    async def test(service, run) -> None:
        with await connected() as viewer:
            with run.recorder.span("later"):
                pass
            (process,) = viewer.capture(60.0).processes
            assert "later" in [process.name(r) for r in process.of_kind("span")]
            assert viewer.run["id"] == tmp_path.name
            assert viewer.status["status"]["title"] == "a run"
            assert len(viewer.history) >= 1

    with served(tmp_path) as run_test:
        run_test(test)


def test_a_viewer_that_stalls_is_dropped_from_and_counted_and_the_others_hear_all(tmp_path):
    async def test(service, run) -> None:
        stalled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stalled.connect(str(run.runtime_folder.path / wire.SOCKET))
        with stalled, await connected() as viewer:
            for _ in range(2 * wire.CREDITS):
                began_s = time.perf_counter()
                service._tick()
                assert time.perf_counter() - began_s < 0.5
                await asyncio.to_thread(viewer.watch, 0.002)
                await asyncio.sleep(0)
            numbers = viewer.status["number"]
            assert numbers > 2 * wire.CREDITS
            assert viewer.status["dropped"] == 0
            assert service.dropped >= wire.CREDITS
            assert viewer.status["viewers"] == 2

    with served(tmp_path) as run_test:
        run_test(test)


def test_a_viewer_that_says_what_nobody_asked_for_is_shown_out(tmp_path):
    async def test(service, run) -> None:
        rude = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rude.connect(str(run.runtime_folder.path / wire.SOCKET))
        with rude:
            rude.send(b"pause the run")
            await asyncio.to_thread(read_to_the_end, rude)
            assert service._viewers == []

    with served(tmp_path) as run_test:
        run_test(test)


def test_only_the_owner_of_the_run_is_let_in(tmp_path, monkeypatch):
    async def test(service, run) -> None:
        folder = run.runtime_folder.path
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / wire.SOCKET).stat().st_mode & 0o777 == 0o600
        # Whoever gets as far as the socket nevertheless is asked who he is.
        monkeypatch.setattr(wire.os, "getuid", lambda: os.geteuid() + 1)
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with stranger:
            stranger.connect(str(folder / wire.SOCKET))
            stranger.settimeout(5.0)
            assert await asyncio.to_thread(stranger.recv, wire.PACKET_BYTES) == b""
        assert service._viewers == []

    with served(tmp_path) as run_test:
        run_test(test)


def test_only_a_run_that_lives_is_found(tmp_path):
    folder = RuntimeFolder.create()
    card = {
        "version": wire.VERSION,
        "id": "mine-1",
        "pid": 1,
        "script": None,
        "run_dir": str(tmp_path),
        "mode": "serial",
        "seed": 0,
        "began_s": 0.0,
    }
    (folder.path / wire.CARD).write_bytes(orjson.dumps(card))
    assert [found.id for found in live_runs()] == ["mine-1"]
    assert find_run("min").id == find_run(str(tmp_path)).id == "mine-1"
    with pytest.raises(BadInput, match="no run that goes on; did you mean 'mine-1'"):
        find_run("mime-1")
    folder.remove()
    assert live_runs() == []
    with pytest.raises(BadInput, match="no run is going on"):
        find_run(None)


@pytest.mark.process
def test_a_real_run_is_listed_traced_and_its_last_minute_kept(
    launch, tmp_path, monkeypatch, capsys
):
    run = launch(EXAMPLE, *SMALL, "--mode", "disaggregated", "--max-lag", "1")
    assert run.wait_iterations(3), run.stderr
    monkeypatch.setattr("tempfile.tempdir", str(run.temporary))

    assert ps.command(["--json"]) == 0
    (row,) = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["id"], row["mode"], row["phase"]) == (run.run_dir.name, "disaggregated", "training")
    assert row["iteration"] >= 3

    file = tmp_path / "a.pftrace"
    assert trace.command([row["id"], "--seconds", "60", "-o", str(file)]) == 0
    assert file.stat().st_size > 10_000

    run.process.terminate()
    assert run.finish(10) == 143
    flight = Capture.load(run.run_dir / "flight.bin")
    assert [each.process for each in flight.processes] == ["controller", "host-0", "train"]
    assert flight.status["failure"].startswith("interrupted by SIGTERM")
    paths = segment_paths(flight)
    trained = [path for path in paths if "train" in path.stations]
    assert len(trained) >= 12
    assert all(path.complete for path in trained)
    for each in flight.processes:
        for account in each.state["stages"].values():
            wall_ns = account["now_ns"] - account["began_ns"]
            assert sum(spent_ns for *_, spent_ns in account["spent"]) == wall_ns


def test_ps_and_trace_explain_themselves():
    for name in ("ps", "trace"):
        done = subprocess.run(
            [sys.executable, "-m", "rlinf_async", name, "--help"],
            capture_output=True,
            text=True,
            env={**os.environ},
            check=False,
        )
        assert done.returncode == 0
        assert done.stdout.startswith(f"usage: python -m rlinf_async {name}")
