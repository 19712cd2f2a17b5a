"""Which backend a cell gets: what was asked for, or what is quickest by a short measurement.

The choice changes nothing but speed, so it may differ from machine to machine and from run to run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlinf_async.envs.backends.local import ThreadPart
from rlinf_async.envs.backends.processes import ProcessPart
from rlinf_async.envs.backends.split import SplitCell, deal
from rlinf_async.envs.request import EnvRequest
from rlinf_async.envs.wrappers.by_name import GymnasiumWrapper
from rlinf_async.errors import BadInput
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.references import describe, rebuild
from rlinf_async.execution.spaces import Spaces

log = get_logger()

BACKENDS = ("auto", "loop", "threads", "processes")
LEAST_GAIN = 0.1
"""Anything but the loop must be so much quicker: it costs memory, and measurements are noisy."""
CHEAP_S = 5e-4
"""Steps that are quicker than this stay in the loop: handing them to another thread or process and
waking it costs as much, and trying it costs seconds at every start."""
_MEASURED_S = 0.05
_MOST_STEPS = 50

MakeLocal = Callable[[int, int], Any]
"""(count, first_slot) -> a cell of so many slots, stepped in a loop."""


def open_cell(
    request: EnvRequest, make_local: MakeLocal, count: int, first_slot: int, name: str
) -> Any:
    """The cell of `count` slots in the backend that `request` names, or in the quickest."""
    if request.backend not in BACKENDS:
        raise BadInput(
            "run.envs", "backend", expected=" or ".join(BACKENDS), got=repr(request.backend)
        )
    cores = len(os.sched_getaffinity(0))

    def build(backend: str, slots: int) -> Any:
        sizes = deal(slots, max(2, cores))
        if backend == "threads":
            return _in_threads(make_local, sizes, first_slot, name)
        if backend == "processes":
            return _in_processes(request, sizes, first_slot, name)
        return make_local(slots, first_slot)

    if request.backend != "auto":
        return build(request.backend, count)
    if min(cores, count) < 2:
        return build("loop", count)  # one core cannot do two things at once
    try:
        seconds = measure(build, min(cores, count))
    except Exception as error:
        # What is wrong with an environment is for the run to find, with its own actions.
        log.info("backend_not_measured", env=name, error=repr(error))
        return build("loop", count)
    chosen = quickest(seconds)
    log.info(
        "backend_chosen",
        env=name,
        backend=chosen,
        **{f"{backend}_us": round(each_s * 1e6) for backend, each_s in seconds.items()},
    )
    return build(chosen, count)


def measure(build: Callable[[str, int], Any], slots: int) -> dict[str, float]:
    """Seconds of a step in each backend, with cells that are thrown away again.

    One slot for each core is the least that can show a gain; more slots only add to it.
    """
    seconds: dict[str, float] = {}
    for backend in BACKENDS[1:]:
        cell = build(backend, slots)
        try:
            cell.reset(range(slots))
            seconds[backend] = _stepped(cell, cheap_s=slots * CHEAP_S)
        finally:
            cell.close()
        if seconds["loop"] < slots * CHEAP_S:
            break
    return seconds


def quickest(seconds: Mapping[str, float]) -> str:
    """The backend with the least seconds, or the loop where that gains too little."""
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] < seconds["loop"] * (1.0 - LEAST_GAIN) else "loop"


def _stepped(cell: Any, *, cheap_s: float) -> float:
    """Seconds of a step: the least of three goes, or of the first one where that is cheap."""
    action = cell.spaces.action
    zeros = np.zeros((cell.slots, *action.shape), action.row_dtype)

    def go(least_s: float) -> float:
        start_s, steps = time.perf_counter(), 0
        while steps < _MOST_STEPS and (steps == 0 or time.perf_counter() - start_s < least_s):
            cell.step(zeros, lambda slot: slot)
            steps += 1
        return (time.perf_counter() - start_s) / steps

    # The first steps are slow (imports, allocations), so they can only say that all are cheap.
    first_s = go(_MEASURED_S / 10)
    return first_s if first_s < cheap_s else min(go(_MEASURED_S) for _ in range(3))


def _in_threads(make_local: MakeLocal, sizes: list[int], first_slot: int, name: str) -> Any:
    parts, start, tasks = [], first_slot, []
    cell: Any = None
    for number, size in enumerate(sizes):
        cell = make_local(size, start)
        parts.append(ThreadPart(cell, number))
        tasks += cell.tasks
        start += size
    spaces, limit = cell.spaces, cell.time_limit
    return SplitCell(parts, sizes, name=name, spaces=spaces, time_limit=limit, tasks=tasks)


def _in_processes(request: EnvRequest, sizes: list[int], first_slot: int, name: str) -> Any:
    inner = {
        "env": _plain(request.env, name),
        "wrappers": [
            _plain(each, name)
            for each in request.wrappers
            if isinstance(each, str) or isinstance(rebuild(each, where=name), GymnasiumWrapper)
        ],
        "time_limit": request.time_limit,
        "checks": request.checks,
        "backend": "loop",
    }
    parts: list[ProcessPart] = []
    start = first_slot
    try:
        for size in sizes:
            parts.append(ProcessPart(inner, size, start, name))
            start += size
        told = [part.opened() for part in parts]
    except BaseException:
        for part in parts:
            part.close()
        raise
    return SplitCell(
        parts,
        sizes,
        name=name,
        spaces=Spaces.from_json(told[0]["spaces"]),
        time_limit=told[0]["time_limit"],
        tasks=[task for each in told for task in each["tasks"]],
    )


def _plain(described: Any, name: str) -> Any:
    """An id or a description as it is; what was rebuilt on the way here is described again."""
    return described if isinstance(described, str | dict) else describe(described, where=name)
