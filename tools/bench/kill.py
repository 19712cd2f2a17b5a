"""What happens when processes of a run are killed, or the user presses Ctrl-C, at random moments.

SIGKILL to each kind of worker: is the error on stderr within 2 s, does it name the worker, is the
exit code not 0? SIGINT to the controller's process group, as a terminal sends it, from the start of
the process to the end of the run, once and twice. SIGKILL to the controller: are its hosts gone
within 2 s, and does the next start remove its socket folder? And each time: is anything left
behind, be it a process, shared memory or a file in the run's temporary folder?
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import emit
from processes import MarkedRun, all_memory_files, memory_files
from runs import EXAMPLE

LIMIT_S = 2.0
"""Within which the error must be readable, and orphans gone."""
WAIT_S = 30.0

SMALL = {
    "env": "InvertedPendulum-v5",
    "env-count": 8,
    "cell": 2,
    "horizon": 16,
    "minibatch": 32,
    "epochs": 2,
}
VICTIMS = (
    ("host-0", {"mode": "collocated", "hosts": 2}),
    ("host-1", {"mode": "collocated", "hosts": 2}),
    ("host-0", {"mode": "disaggregated", "hosts": 1}),
    ("train", {"mode": "disaggregated", "hosts": 1, "max-lag": 1}),
    ("host-1", {"mode": "collocated", "hosts": 2, "policy": "central"}),
    ("policy", {"mode": "collocated", "hosts": 2, "policy": "central"}),
)
"""Each kind of worker, and the options of a run that has one."""
ENDLESS = 1_000_000


@dataclass(slots=True)
class Tally:
    """What was seen over all runs."""

    trouble: list[str] = field(default_factory=list)
    """One line for everything that was not as it must be."""
    left_behind: int = 0
    detected: list[float] = field(default_factory=list)
    named: int = 0
    kills: int = 0
    interrupt_exits: list[float] = field(default_factory=list)
    interrupts: int = 0
    interrupt_codes: dict[int, int] = field(default_factory=dict)
    orphans_gone: list[float] = field(default_factory=list)
    stale_removed: int = 0

    def note(self, what: str, run: MarkedRun) -> None:
        """Keep what was wrong, with the end of the run's stderr."""
        tail = " | ".join(run.stderr.strip().splitlines()[-3:])
        self.trouble.append(f"{what}: {tail}"[:600])

    def look_behind(self, what: str, run: MarkedRun, memory: set[tuple[int, int]]) -> None:
        """Count processes, files and shared memory that outlived the run."""
        left = run.left_behind()
        left += [f"memfd {number}" for number in memory & all_memory_files()]
        if left:
            self.left_behind += len(left)
            self.note(f"{what} left {left}", run)


def launch(options: dict[str, Any], *, iterations: int = ENDLESS, **how: Any) -> MarkedRun:
    """The small run with these options."""
    given = {**SMALL, **options, "iterations": iterations}
    return MarkedRun(EXAMPLE, [w for k, v in given.items() for w in (f"--{k}", str(v))], **how)


def kill_worker(
    tally: Tally, victim: str, options: dict[str, Any], delay_s: float, count: int
) -> None:
    """SIGKILL `victim` at `delay_s` after its start."""
    what = f"kill {count} of {victim} ({options['mode']}) at {delay_s:.2f} s"
    with launch(options) as run:
        if not run.wait_until(lambda: victim in run.hosts(), WAIT_S):
            tally.note(f"{what}: it never started", run)
            return
        time.sleep(delay_s)
        memory = memory_files(run.pids())
        pid = run.hosts().get(victim)
        if pid is None:
            tally.note(f"{what}: the run ended before", run)
            return
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        code = run.finish(WAIT_S)
        tally.kills += 1
        seen_s = run.error_seen_s()
        tally.detected.append(WAIT_S if seen_s is None else seen_s - killed_s)
        first = next((line for _, line in run.err if line.startswith("error")), "")
        named = f"worker {victim} " in first and "SIGKILL" in first
        tally.named += named
        if not named or code != 1 or tally.detected[-1] > LIMIT_S:
            tally.note(f"{what}: exit {code} after {tally.detected[-1]:.2f} s", run)
        tally.look_behind(what, run, memory)


def interrupt(tally: Tally, options: dict[str, Any], delay_s: float, *, twice: bool) -> None:
    """Ctrl-C `delay_s` after the start of the process, once or twice."""
    what = f"Ctrl-C{' twice' if twice else ''} at {delay_s:.2f} s ({options['mode']})"
    with launch(options, iterations=40) as run:
        time.sleep(delay_s)
        memory = memory_files(run.pids())
        running = run.process.poll() is None
        sent_s = time.monotonic()
        run.interrupt()
        if twice:
            time.sleep(0.02)
            run.interrupt()
        code = run.finish(WAIT_S)
        if running:
            tally.interrupts += 1
            tally.interrupt_exits.append(time.monotonic() - sent_s)
            tally.interrupt_codes[code] = tally.interrupt_codes.get(code, 0) + 1
            # 0: the run had ended when the signal came; -2: Python had not set up its handler yet
            if code not in (130, -signal.SIGINT, 0):
                tally.note(f"{what}: exit {code}", run)
        tally.look_behind(what, run, memory)


def kill_controller(tally: Tally, options: dict[str, Any], delay_s: float) -> None:
    """SIGKILL the controller; then start another run, which must tidy up."""
    what = f"kill of the controller ({options['mode']}) at {delay_s:.2f} s"
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as folder:
        with launch(options, temporary=Path(folder)) as run:
            time.sleep(delay_s)
            memory = memory_files(run.pids())
            killed_s = time.monotonic()
            run.process.kill()
            run.process.wait()
            give_up = killed_s + WAIT_S
            # A process that is ending shows no environment any more, but still holds its files.
            while (run.pids() or memory & all_memory_files()) and time.monotonic() < give_up:
                time.sleep(0.002)
            tally.orphans_gone.append(time.monotonic() - killed_s)
            if memory & all_memory_files():
                tally.left_behind += 1
                tally.note(f"{what}: shared memory remains", run)
        stale = run.folders()
        with launch({"mode": "serial"}, iterations=1, temporary=Path(folder)) as after:
            after.finish(WAIT_S)
            kept = [path.name for path in stale if path.exists()]
            tally.stale_removed += len(stale) - len(kept)
            if kept:
                tally.note(f"{what}: the next start did not remove {kept}", after)
            tally.look_behind(f"the start after {what}", after, set())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer of each")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    rng = random.Random(args.seed)
    kills, interrupts, doubles, controllers = (6, 6, 2, 2) if args.quick else (20, 20, 5, 5)
    tally = Tally()
    for count in range(kills):
        victim, options = VICTIMS[count % len(VICTIMS)]
        kill_worker(tally, victim, options, rng.uniform(0.0, 2.0), count)
    for count in range(interrupts + doubles):
        _, options = VICTIMS[count % len(VICTIMS)]
        # The first moments are the start of Python, the last ones lie after the end of the run.
        delay_s = rng.uniform(0.02, 2.5)
        interrupt(tally, options, delay_s, twice=count >= interrupts)
    for count in range(controllers):
        _, options = VICTIMS[count % len(VICTIMS)]
        kill_controller(tally, options, rng.uniform(0.2, 2.5))
    report(tally)
    return 1 if tally.trouble else 0


def report(tally: Tally) -> None:
    """Print what was wrong, and the figures."""
    for line in tally.trouble:
        print(line, file=sys.stderr)
    emit(
        "kill",
        kills=tally.kills,
        detected_under_2s=sum(took_s <= LIMIT_S for took_s in tally.detected),
        named=tally.named,
        left_behind=tally.left_behind,
        detection_s={
            "median": statistics.median(tally.detected),
            "max": max(tally.detected),
        },
        interrupts=tally.interrupts,
        interrupt_codes={str(code): n for code, n in sorted(tally.interrupt_codes.items())},
        interrupt_exit_s={
            "median": statistics.median(tally.interrupt_exits),
            "max": max(tally.interrupt_exits),
        },
        controller_kills=len(tally.orphans_gone),
        orphans_gone_s_max=max(tally.orphans_gone),
        stale_folders_removed=tally.stale_removed,
        trouble=len(tally.trouble),
    )


if __name__ == "__main__":
    sys.exit(main())
