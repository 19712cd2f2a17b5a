"""What benchmarks share: the machine's description, a meter, taking turns, one JSON line.

with machine_to_itself():                       # no other benchmark or learning run beside us
    with Meter() as meter:
        work()
emit("stream_hop", hop_us=meter.wall_s * 1e6)   # the last line on standard output
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

ROOT = Path(__file__).resolve().parents[2]
"""The project's root."""

BENCH = Path(__file__).resolve().parent
"""Where peers are started: `python -m peers.NAME`."""

MISSING_PEER = 3
"""Exit code when a system to compare with is not installed."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Set for every measured process: spinning threads on shared cores measure each other."""


def on_one_thread() -> None:
    """Start this benchmark anew unless it has `ONE_THREAD`, which libraries read when loaded."""
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)


# ---- one benchmark at a time: `gate` is held by the benchmark, `floor` by whoever computes ----


def _lock_path(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"rlinf_async-bench-{os.getuid()}.{name}"


def _take(path: Path, patience_s: float) -> int:
    """Lock `path`; exit with code 1 and the holder's name when it stays taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up = time.monotonic() + patience_s
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {' '.join(sys.argv)[:200]}".encode(), 0)
            return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 300, 0).decode(errors="replace")
            if time.monotonic() > give_up:
                sys.exit(f"gave up after {patience_s:g} s waiting for {path}, held by {holder}")
            if not told:
                print(f"waiting for {holder}", file=sys.stderr, flush=True)
                told = True
            time.sleep(0.1)


@contextlib.contextmanager
def machine_to_itself(patience_s: float = 1200.0) -> Iterator[None]:
    """Hold the machine against other benchmarks; learning runs step aside (see `learning.py`)."""
    gate = _take(_lock_path("gate"), patience_s)
    try:
        floor = _take(_lock_path("floor"), patience_s)
        try:
            yield
        finally:
            os.close(floor)
    finally:
        os.close(gate)


def benchmark_waits() -> bool:
    """Whether a benchmark holds the gate, so that a long run should step aside."""
    descriptor = os.open(_lock_path("gate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def floor(patience_s: float = 7200.0) -> Iterator[None]:
    """Held by a long run while it computes; a benchmark waits until it is given back."""
    descriptor = _take(_lock_path("floor"), patience_s)
    try:
        yield
    finally:
        os.close(descriptor)


# ---- measuring ----


def cpu_s() -> float:
    """User and system seconds of this process and its finished children."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def busy_s() -> float:
    """Seconds that all cores together were busy since boot, time taken by other guests included."""
    with open("/proc/stat") as stat:
        # user nice system idle iowait irq softirq steal; the guest columns repeat user and nice
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Wall seconds, our CPU seconds (ended children included), and what others used meanwhile."""

    wall_s: float
    cpu_s: float
    others_cores: float
    """Mean cores that were busy with something that is not ours."""

    def __enter__(self) -> Self:
        self._busy_s, self._cpu_s, self._start_s = busy_s(), cpu_s(), time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.wall_s = time.perf_counter() - self._start_s
        self.cpu_s = cpu_s() - self._cpu_s
        self.others_cores = max(0.0, busy_s() - self._busy_s - self.cpu_s) / self.wall_s


def median(values: Iterable[float]) -> float:
    """The median; nan of nothing."""
    listed = list(values)
    return statistics.median(listed) if listed else float("nan")


# ---- running and reporting ----


def run_json(command: Sequence[str], *, cwd: Path = ROOT, timeout_s: float = 1200.0) -> Any:
    """Run `command` on one thread and return the JSON value of its last line; exit if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-4000:], file=sys.stderr)
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def missing_peer(name: str) -> NoReturn:
    """Say how to install a system to compare with, and exit with code 3."""
    print(
        f"{name} is not installed, and no figure is given without it. To install it:\n"
        f"    {sys.executable} -m pip install -c constraints.txt -e '.[bench,mujoco,train]'",
        file=sys.stderr,
    )
    sys.exit(MISSING_PEER)


def tell_round(number: int, figures: Mapping[str, float]) -> None:
    """Print what one round of several has shown."""
    shown = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
    print(f"round {number}: {shown}", flush=True)


def machine() -> dict[str, Any]:
    """The processor, cores, memory and versions that a figure depends on."""
    model = platform.processor() or "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        names = (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
        model = next(names, model)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_gib, 1),
        "python": platform.python_version(),
        "linux": platform.release(),
    }


def commit() -> str:
    """The git commit, with `+changes` when the working tree differs; `none` outside of git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+changes" if _git("status", "--porcelain") else "") if head else "none"


def _git(*arguments: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def emit(bench: str, **figures: Any) -> None:
    """Print the one JSON line that ends a benchmark; floats are rounded to six digits."""
    line = {"bench": bench, **figures, "machine": machine(), "commit": commit()}
    print(json.dumps(_rounded(line)), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
