"""Does `diagnose` name what is wrong, and how soon?

Three runs, each with one fault: an environment that falls asleep in `step`, a bounded stream that
its only consumer does not drain, a trainer that works several times as long as the rollouts. From
the moment at which the fault begins `diagnose` is asked until it names it. A fourth run without a
fault must be called healthy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, emit
from processes import MarkedRun

SCRIPT = Path(__file__).parent / "scripts" / "planted_faults.py"
LIMIT_S = 15.0
EXPECTED = {
    "sleeping_step": ("stuck: an environment of host-0", "of the episode of slot"),
    "undrained_stream": ("stuck: stage forgetful takes nothing from stream batches",),
    "slow_trainer": ("slow: the run is bound by the learner",),
}
"""What the verdict must say, by fault."""


def diagnose(run: MarkedRun) -> tuple[int, str]:
    """The exit code and the text of one `diagnose`."""
    done = subprocess.run(
        [sys.executable, "-m", "rlinf_async", "diagnose", str(run.run_dir)],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(run.temporary)},
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def plant(fault: str) -> dict[str, Any]:
    """Start a run with the fault and ask what is wrong until it is named."""
    with tempfile.TemporaryDirectory(prefix="rlinf-bench-") as folder:
        mark = Path(folder, "mark")
        options = ("--fault", fault, "--mark", str(mark), "--mode", "disaggregated", "--hosts", "1")
        with MarkedRun(SCRIPT, options) as run:
            return _ask(run, mark, fault)


def healthy() -> bool:
    """Whether a run without a fault is called healthy."""
    with MarkedRun(SCRIPT, ("--mode", "collocated", "--hosts", "1")) as run:
        run.wait_iterations(20, 60.0)
        code, said = diagnose(run)
    if code:
        print(said, file=sys.stderr)
    return code == 0


def _ask(run: MarkedRun, mark: Path, fault: str) -> dict[str, Any]:
    if not run.wait_until(mark.exists, 60.0):
        return {"fault": fault, "named": False, "said": run.stderr[-500:]}
    began_s = float(mark.read_text())
    said = ""
    while time.monotonic() - began_s < LIMIT_S:
        code, said = diagnose(run)
        took_s = time.monotonic() - began_s
        if code == 1 and all(words in said for words in EXPECTED[fault]):
            return {"fault": fault, "named": True, "after_s": took_s, "said": said.splitlines()[0]}
    return {"fault": fault, "named": False, "said": said[:500]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="each fault once (otherwise 3 times)")
    repeat = 1 if parser.parse_args().quick else 3
    found = [plant(fault) for _ in range(repeat) for fault in EXPECTED]
    for each in found:
        print(json.dumps(each), file=sys.stderr)
    named = [each for each in found if each["named"]]
    worst_s = max((each["after_s"] for each in named), default=float("nan"))
    fine = healthy()
    emit(
        "diagnose_faults",
        planted=len(found),
        named=len(named),
        worst_s=worst_s,
        healthy_run_healthy=fine,
    )
    sys.exit(len(named) < len(found) or not fine)


if __name__ == "__main__":
    main()
