"""Workers that only occupy devices: modes, leases and switches with real processes and no models.

A script calls `simulate()` before its pipeline opens and takes `SimulatedLoad` as its policy. A
simulated device is a file lock; work holds the lock of one core that its process may run on, in
short turns, and two processes on one core take twice as long. So a plan acts on simulated work as
it does on real work, on any machine however few cores it has.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.execution.records import Batch
from rlinf_async.execution.references import rebuild
from rlinf_async.execution.roles import register_role
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.execution.worker import Worker, WorkerContext

TURN_S = 0.004
"""How long a device is held at a time."""

SPACES = Spaces(
    observation=(ArraySpec(name="state", shape=(1,), dtype="float32"),),
    action=ActionSpec(kind="continuous", shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,)),
)
"""Of simulated environments: nothing reads or writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """Seconds of one device, undisturbed; stands where a policy stands."""

    spaces: Any
    devices: str
    """Folder of the devices' locks, the same for all workers of a run."""
    cell_s: float
    """To collect one segment of one cell."""
    train_s: float
    """To train one batch."""
    slow: str = ""
    """Once this file exists collecting takes five times as long."""

    def to_module(self) -> None:
        """There is nothing to build."""


def simulate() -> None:
    """Let simulated workers play all roles of the run that follows."""
    register_role("render", "rlinf_async.workers.simulated:SimulatedRender")
    register_role("rollout", "rlinf_async.workers.simulated:SimulatedRollout")
    register_role("train", "rlinf_async.workers.simulated:SimulatedTrain")


class SimulatedRender(Worker):
    """Its work is counted as the rollout worker's."""

    def __init__(self, context: WorkerContext, **_: Any) -> None:
        super().__init__(context)


class SimulatedRollout(Worker):
    """Occupies a device for every segment."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        policy: Any,
        horizon: int,
        cells: dict[str, int],
        **_: Any,
    ) -> None:
        super().__init__(context)
        self._load: SimulatedLoad = _load(policy)
        self._horizon, self._cells = horizon, {int(cell): slots for cell, slots in cells.items()}

    def adopt(self, version: int, row: int) -> int:
        """Nothing to read."""
        return version

    def collect(self, cell: int, batch: int, version: int, row: int) -> dict[str, Any]:
        """One segment."""
        slow = bool(self._load.slow) and os.path.exists(self._load.slow)
        occupy(Path(self._load.devices), self._load.cell_s * (5.0 if slow else 1.0))
        return {
            "episodes": [],
            "oldest_version": version,
            "newest_version": version,
            "env_steps": self._horizon * self._cells[cell],
        }


class SimulatedTrain(Worker):
    """Occupies a device for every batch."""

    def __init__(self, context: WorkerContext, *, policy: Any, **_: Any) -> None:
        super().__init__(context)
        self._load: SimulatedLoad = _load(policy)

    def describe(self) -> dict[str, Any]:
        """The fields of a weights row."""
        return {"fields": [["version", [1], "int64"]], "parameters": 0}

    def initialise(self, row: int) -> None:
        """Version 0."""
        self.context.rows("weights", row)["version"][0] = 0

    def configure(self, **_: Any) -> dict[str, str]:
        """There is no learner."""
        return {"name": "simulated", "reason": "the script asked for it"}

    def train(self, batch: Batch, row: int) -> dict[str, float]:
        """One iteration."""
        occupy(Path(self._load.devices), self._load.train_s)
        self.context.rows("weights", row)["version"][0] = batch.index + 1
        return {}

    def save(self, folder: str, manifest: dict[str, Any], policy: dict[str, Any]) -> None:
        """There is nothing to keep."""


def occupy(devices: Path, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
    """Hold devices of this process for `seconds` in all, one at a time, in turns.

    Before every turn the process's affinity is looked at again: it may have been moved.
    """
    left_s = seconds
    for turn in itertools.count():
        if left_s <= 0.0:
            return
        with _device(devices, turn):
            began_s = now()
            # A modelled duration is waited for: this is the work.
            time.sleep(min(TURN_S, left_s))
            left_s -= now() - began_s


class _device:
    """The lock of a core that this process may run on: a free one, or the next one's turn."""

    def __init__(self, devices: Path, turn: int) -> None:
        self._folder, self._turn = devices, turn

    def __enter__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        for core in cores:
            self._file = os.open(self._folder / f"core-{core}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                os.close(self._file)
        core = cores[self._turn % len(cores)]
        self._file = os.open(self._folder / f"core-{core}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _load(policy: Any) -> SimulatedLoad:
    load = rebuild(policy, where="simulated load")()
    assert isinstance(load, SimulatedLoad)
    return load
