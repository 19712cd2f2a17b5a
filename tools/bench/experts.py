"""Do Meta-World's scripted experts succeed through our cells? MT10, fresh seeds, recorded.

Each task's episodes are the slots of one cell, stepped in the interpreter of the suite by the code
that render workers run; a slot that has succeeded is retired. Every episode is recorded in our
format. Seeds are evaluation seeds, which no training ever draws.

    python tools/bench/experts.py [--quick] [--record FOLDER]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from common import ROOT, emit

SEEDS = 20
QUICK_SEEDS = 2
HORIZON = 300
"""Steps that an expert is given; it needs 50 to 100."""
PATIENCE_S = 1200.0


def score(task: str, first: int, seeds: int, recording: Any) -> dict[str, Any]:
    """Episodes of one task in one cell: successes, and steps to them."""
    from rlinf_async.envs.registry import make_cell
    from rlinf_async.envs.seeding import episode_seed
    from rlinf_async.envs.suites.metaworld import expert, instruction_of

    cell = make_cell(f"metaworld/{task}", seeds)
    chosen = [episode_seed(0, first + slot, 0, stream="evaluate") for slot in range(seeds)]
    seen = cell.reset(chosen)["state"]
    experts = [expert(task) for _ in range(seeds)]
    words = instruction_of(task)
    episodes = [
        recording.open(first + slot, seed=chosen[slot], task=task, instruction=words)
        for slot in range(seeds)
    ]
    live, steps = np.arange(seeds), np.zeros(seeds, np.int64)
    succeeded = np.zeros(seeds, bool)
    for t in range(HORIZON):
        actions = np.zeros((seeds, 4), np.float32)
        for slot in live:
            actions[slot] = experts[slot](seen[slot])
        result = cell.step(actions, lambda slot: None, slots=live)
        after = result.observation["state"]
        for slot in live:
            success = bool(result.success is not None and result.success[slot])
            episodes[slot].add(
                {"state": seen[slot]},
                actions[slot],
                actions[slot],
                reward=result.reward[slot],
                terminated=False,
                truncated=False,
                success=success,
            )
            if success or t + 1 == HORIZON:
                episodes[slot].finish({"state": after[slot]})
                succeeded[slot], steps[slot] = success, t + 1
        seen = after
        live = live[~succeeded[live]]
        if not live.size:
            break
    cell.close()
    return {"succeeded": int(succeeded.sum()), "steps": float(np.median(steps))}


def inside(folder: str, seeds: int) -> None:
    """The part that runs in the suite's interpreter."""
    import mujoco

    from rlinf_async.envs.registry import describe_env
    from rlinf_async.envs.suites.metaworld import tasks_of
    from rlinf_async.execution.spaces import Spaces
    from rlinf_async.recording import RecordingWriter

    spaces = Spaces.from_json(describe_env("metaworld/push-v3")["spaces"])
    recording = RecordingWriter(folder, spaces=spaces, env="metaworld/MT10", fps=80.0)
    told = {
        task: score(task, number * seeds, seeds, recording)
        for number, task in enumerate(tasks_of("MT10"))
    }
    print(orjson.dumps({"tasks": told, "mujoco": mujoco.__version__}).decode())


def main() -> None:
    """Measure in the suite's interpreter, count here what was recorded, and print."""
    from rlinf_async.hardware.interpreters import interpreter_of, named
    from rlinf_async.recording import Recording

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: two seeds a task")
    parser.add_argument("--record", type=Path, help="keep the recording in this folder")
    args = parser.parse_args()
    seeds = QUICK_SEEDS if args.quick else SEEDS
    python = interpreter_of(named("metaworld"))
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as kept:
        folder = args.record or Path(kept) / "experts"
        command = [str(python), __file__, "--inside", str(folder), str(seeds)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        told = orjson.loads(done.stdout.splitlines()[-1])
        recorded = list(Recording(folder))
    import mujoco

    emit(
        "experts",
        succeeded=sum(bool(episode.described["success_once"]) for episode in recorded),
        episodes=len(recorded),
        tasks=told["tasks"],
        mujoco=told["mujoco"],
        mujoco_here=mujoco.__version__,
        took_s=time.monotonic() - start_s,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], int(sys.argv[3]))
    else:
        main()
