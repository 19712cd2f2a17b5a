"""Seconds from `attach` to the first drawn frame, in a terminal.

The terminal is a pseudo terminal of 150 x 44; the frame is there when its last box was written.
Measured twice: beside a real run that uses all cores, and beside one whose workers are stopped
(SIGSTOP), which leaves the machine idle.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from common import ROOT, emit, median
from processes import MarkedRun
from runs import EXAMPLE

OPTIONS = ("--env", "HalfCheetah-v5", "--iterations", "1000000", "--max-lag", "1")
LIMIT_S = 20.0
LAST_BOX = b"where the time goes"


def first_frame_s(run: MarkedRun) -> float:
    """Start `attach`, wait for its first frame, leave."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 150, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "TMPDIR": str(run.temporary)}
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlinf_async", "attach"],
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        took_s = _until_drawn(ours, began_s)
        os.write(ours, b"q")
        _drain_until_ended(ours, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)
    return took_s


def _until_drawn(terminal: int, began_s: float) -> float:
    seen = b""
    while time.monotonic() - began_s < LIMIT_S:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 1 << 16)
            if LAST_BOX in seen:
                return time.monotonic() - began_s
    sys.exit(f"no frame within {LIMIT_S:g} s; seen: {seen[-500:]!r}")


def _drain_until_ended(terminal: int, process: subprocess.Popen[bytes]) -> None:
    give_up_s = time.monotonic() + 10.0
    while process.poll() is None and time.monotonic() < give_up_s:
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 1 << 16)


def measure(idle: bool, repeat: int) -> list[float]:
    """The latencies beside one run."""
    with MarkedRun(EXAMPLE, OPTIONS) as run:
        if not run.wait_iterations(2, 60.0):
            sys.exit(run.stderr)
        hosts = run.hosts().values() if idle else ()
        for pid in hosts:
            os.kill(pid, signal.SIGSTOP)
        return [first_frame_s(run) for _ in range(repeat)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 times instead of 10")
    repeat = 3 if parser.parse_args().quick else 10
    idle, busy = measure(True, repeat), measure(False, repeat)
    emit(
        "attach_latency",
        first_frame_s=median(idle),
        first_frame_busy_s=median(busy),
        worst_s=max(*idle, *busy),
        n=repeat,
    )


if __name__ == "__main__":
    main()
