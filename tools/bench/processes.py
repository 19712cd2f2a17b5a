"""A run's processes as /proc shows them: who they are, how they end, what they leave behind.

Every process of a run inherits a mark in its environment and a temporary folder of its own, so that
only what belongs to that run is ever found, killed or called a leftover.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "RLINF_BENCH_MARK"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
HOST_MODULE = b"rlinf_async.execution.host"
POLL_S = 0.005


class MarkedRun:
    """`python -m rlinf_async run SCRIPT ...` in a process group of its own, with a private TMPDIR.

    Another `command` than `run` takes the checkpoint, or whatever it needs, in the script's place.

    Leaving the block kills what is left of the run and removes its temporary folder.
    """

    def __init__(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        temporary: Path | None = None,
        run_dir: str | Path | None = None,
        stdin: int = subprocess.DEVNULL,
        prefix: Sequence[str] = (),
        command: str = "run",
    ) -> None:
        self.mark = secrets.token_hex(8)
        self._own_folder = temporary is None
        self.temporary = temporary or Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
        self.run_dir = Path(run_dir or self.temporary / f"run-{self.mark}")
        engine = ["--run-dir", str(self.run_dir)]
        engine += ["--progress", "none", "--no-curve"] if command == "run" else []
        line = [sys.executable, "-m", "rlinf_async", command, str(script), *engine, *options]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, *line],
            cwd=ROOT,
            env={
                **os.environ,
                **ONE_THREAD,
                "TMPDIR": str(self.temporary),
                MARK: self.mark,
                **(environment or {}),
            },
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[tuple[float, str]] = []
        """Lines of stderr with the moment at which each could be read."""
        self._readers = [
            threading.Thread(target=self._read_out, daemon=True),
            threading.Thread(target=self._read_err, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> MarkedRun:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        if self._own_folder:
            shutil.rmtree(self.temporary, ignore_errors=True)

    # ---- while it runs ----

    def pids(self) -> set[int]:
        """All live processes of the run, however they are related."""
        return set(marked(self.mark))

    def hosts(self) -> dict[str, int]:
        """Live host processes by name: children of the controller, or orphans of it."""
        found = {}
        for pid in marked(self.mark):
            words = _read(pid, "cmdline").split(b"\0")
            if HOST_MODULE in words:
                found[words[words.index(HOST_MODULE) + 1].decode()] = pid
        return found

    def wait_until(self, condition: Callable[[], bool], limit_s: float = 30.0) -> bool:
        """Poll until `condition` holds (True), the run ends or time is up (False)."""
        give_up = time.monotonic() + limit_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > give_up:
                return condition()
            time.sleep(POLL_S)
        return True

    def wait_iterations(self, count: int, limit_s: float = 30.0) -> bool:
        """Wait until `count` iterations are in the metrics file."""
        return self.wait_until(lambda: self.iterations() >= count, limit_s)

    def iterations(self) -> int:
        """Iterations in the metrics file."""
        with contextlib.suppress(OSError):
            return (self.run_dir / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """What a terminal does on Ctrl-C: the signal goes to the whole foreground group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    # ---- afterwards ----

    def finish(self, limit_s: float = 50.0) -> int:
        """The exit code; TimeoutExpired if the run goes on."""
        code = self.process.wait(limit_s)
        for reader in self._readers:
            reader.join(5.0)
        return code

    @property
    def stderr(self) -> str:
        """Everything it wrote to stderr so far."""
        return "".join(line for _, line in self.err)

    def error_seen_s(self) -> float | None:
        """The moment at which the first line with `error` could be read on stderr."""
        return next((at_s for at_s, line in self.err if "error" in line), None)

    def left_behind(self, *, grace_s: float = 0.0) -> list[str]:
        """Processes, and files in the temporary folder apart from the run's own folder."""
        processes = self.left_behind_processes(grace_s=grace_s)
        return processes + [f"file {path}" for path in self.folders()]

    def left_behind_processes(self, *, grace_s: float = 0.0) -> list[str]:
        """Processes of the run that still live after `grace_s` seconds."""
        give_up = time.monotonic() + grace_s
        while self.pids() and time.monotonic() < give_up:
            time.sleep(POLL_S)
        return [f"process {pid}: {_command(pid)}" for pid in sorted(self.pids())]

    def folders(self) -> list[Path]:
        """What lies in the temporary folder, apart from runs' own folders."""
        entries = sorted(self.temporary.iterdir())
        return [path for path in entries if not path.name.startswith("run-")]

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        self.out.extend(self.process.stdout)

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        self.err.extend((time.monotonic(), line) for line in self.process.stderr)


def marked(mark: str) -> Iterator[int]:
    """Live processes whose environment carries the mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        # A zombie has no environment any more, so it is not found: its parent will reap it.
        if entry.isdigit() and wanted in _read(int(entry), "environ").split(b"\0"):
            yield int(entry)


def memory_files(pids: Sequence[int] | set[int]) -> set[tuple[int, int]]:
    """(device, inode) of each memfd that these processes hold open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:"):
                        status = os.stat(f"/proc/{pid}/fd/{name}")
                        found.add((status.st_dev, status.st_ino))
    return found


def all_memory_files() -> set[tuple[int, int]]:
    """Each memfd that any process of this user holds open."""
    return memory_files([int(entry) for entry in os.listdir("/proc") if entry.isdigit()])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
