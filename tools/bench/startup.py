"""Start-up: seconds of `import rlinf_async`, and from the command to the first update.

The first update has happened when the run's metrics.jsonl has its first line: imports, spawning the
workers, probing the environment and collecting the first batch are all included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ONE_THREAD, ROOT, emit, machine_to_itself, median
from runs import EXAMPLE, run_command

LIMIT_S = 120.0


def python_s(code: str) -> float:
    """Wall seconds of a new interpreter that runs `code`."""
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    return time.perf_counter() - start_s


def first_update_s(mode: str) -> float:
    """Wall seconds from the command to the first line of metrics; the run then goes to its end."""
    with tempfile.TemporaryDirectory(prefix="rlinf-bench-") as folder:
        metrics = Path(folder, "run", "metrics.jsonl")
        options = {"iterations": 3, "mode": mode, "run-dir": f"{folder}/run", "progress": "none"}
        start_s = time.perf_counter()
        with subprocess.Popen(
            run_command(EXAMPLE, options),
            cwd=ROOT,
            env=os.environ | ONE_THREAD,
            stdout=subprocess.DEVNULL,
        ) as run:
            took_s = None
            while took_s is None and run.poll() is None:
                if metrics.exists() and b"\n" in metrics.read_bytes():
                    took_s = time.perf_counter() - start_s
                elif time.perf_counter() - start_s > LIMIT_S:
                    run.terminate()
                time.sleep(0.002)
        if took_s is None or run.returncode:
            sys.exit(f"the run ended with {run.returncode} before its first update")
        return took_s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer repetitions")
    parser.add_argument("--mode", default="collocated", help="--mode of the run")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    imports, runs = (7, 3) if args.quick else (21, 7)
    with machine_to_itself():
        import_times = [python_s("import rlinf_async") for _ in range(imports)]
        bare_times = [python_s("pass") for _ in range(imports)]
        update_times = [first_update_s(args.mode) for _ in range(runs)]
    emit(
        "startup",
        import_s=median(import_times),
        bare_interpreter_s=median(bare_times),
        first_update_s=median(update_times),
        first_update_worst_s=max(update_times),
        mode=args.mode,
        n=[imports, runs],
    )


if __name__ == "__main__":
    main()
