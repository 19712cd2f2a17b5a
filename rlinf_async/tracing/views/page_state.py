"""What the page of `attach --web` draws, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.tracing.account import CONTROLLER, stages_of, wait_words
from rlinf_async.tracing.devices import device_reports
from rlinf_async.tracing.diagnosis import diagnose
from rlinf_async.tracing.lanes import Slice, slices, stage_waits
from rlinf_async.tracing.reading import Capture, ProcessTrace
from rlinf_async.tracing.views.log import newest_entries
from rlinf_async.tracing.views.pieces import STATES, colour
from rlinf_async.tracing.views.story import plans_of, story

PLANS = 20
LOG_LINES = 12
INSTANTS = 200
HOST = "@"
"""In the name of a stage that a host does."""


def page_state(capture: Capture) -> dict[str, Any]:
    """The timeline, and everything that is of this moment.

    Times are microseconds; in rows they are relative to the capture's end.
    """
    status = capture.status
    hosts = {host["name"]: host for host in status["hosts"]}
    return {
        "run": capture.run,
        "taken_us": capture.taken_ns // 1000,
        "status": {**status["status"], "losses": {}},
        "max_lag": status["max_lag"],
        "dropped": status["dropped"],
        "hosts": status["hosts"],
        "streams": status["streams"],
        "credits": status.get("credits", {}),
        "tasks": status.get("tasks", []),
        "history": status["history"][-240:],
        "processes": [
            _process(trace, hosts.get(trace.process, {}), capture.taken_ns)
            for trace in capture.processes
        ],
    }


def minute_state(minute: Capture) -> dict[str, Any]:
    """What the last minute says: the verdict, stages, devices; plans and log beside it."""
    found = diagnose(minute)
    return {
        "verdict": [f"{each.kind}: {each.sentence}" for each in found] or [story(minute)],
        "healthy": not found,
        "stages": list(_stages(minute)),
        "devices": [
            {"name": each.name, "busy": each.busy, "idle": each.idle}
            for each in device_reports(minute)
        ],
        "plans": plans_of(minute)[-PLANS:],
        "log": newest_entries(Path(minute.run["run_dir"]) / "logs", LOG_LINES),
    }


def _stages(capture: Capture) -> Iterator[dict[str, Any]]:
    stages = stages_of(capture, recent=True)
    for (name, stage), words in zip(sorted(stages.items()), wait_words(stages), strict=True):
        told = words.removeprefix(f"{name} ")
        yield {"name": name, "shares": stage.shares(), "words": told}


def _process(trace: ProcessTrace, host: Mapping[str, Any], taken_ns: int) -> dict[str, Any]:
    roles = "" if host.get("roles") == trace.process else host.get("roles")
    cores = f"core {', '.join(map(str, host['cores']))}" if host.get("cores") else ""
    about = "   ".join(filter(None, [roles, f"pid {trace.pid}", cores, host.get("at_work")]))
    lanes = _by_lane(slices(trace)).items()
    return {
        "name": trace.process,
        "about": about,
        "instants": _instants(trace, taken_ns),
        "rows": [
            *_stage_rows(trace, taken_ns),
            *(_row(_label(trace, *key), mine, taken_ns) for key, mine in lanes),
            *_counters(trace, taken_ns),
        ],
    }


def _stage_rows(trace: ProcessTrace, taken_ns: int) -> Iterator[dict[str, Any]]:
    """The states of the controller's stages; of other processes the recorded waits, if any."""
    waits = stage_waits(trace)
    accounts = trace.state.get("stages", {}) if trace.process == CONTROLLER else {}
    for stage in sorted({*waits, *accounts}):
        if stage not in waits and HOST in stage:
            continue  # in serial mode: its thread says the same
        found, account = waits.get(stage, []), accounts.get(stage)
        if account is not None and account["state"] != "working":
            # The present wait is not recorded yet, unless it has ended since.
            since_ns = account["since_ns"]
            if not found or max(each.end_ns for each in found) <= since_ns:
                name = f"{account['state']}: {account['on']}"
                found = [*found, Slice(name, 0, 0, 0, since_ns, taken_ns, 0.0)]
        since_us = None if account is None else (account["began_ns"] - taken_ns) // 1000
        yield {**_row(stage, found, taken_ns), "since": since_us}


def _label(trace: ProcessTrace, thread: int, lane: int) -> str:
    name = trace.threads[thread].removesuffix(f"-{trace.process}")
    name = {"MainThread": "calls", "work": "work"}.get(name, name)
    return f"{name} {lane + 1}" if lane else name


def _by_lane(found: Iterable[Slice]) -> dict[tuple[int, int], list[Slice]]:
    lanes: dict[tuple[int, int], list[Slice]] = {}
    for each in found:
        lanes.setdefault((each.thread, each.lane), []).append(each)
    return dict(sorted(lanes.items()))


def _row(label: str, found: list[Slice], taken_ns: int) -> dict[str, Any]:
    """Columns, not records: a hundred thousand slices are a few arrays."""
    names = sorted({each.name for each in found})
    number = {name: at for at, name in enumerate(names)}
    return {
        "label": label,
        "since": None,
        "names": names,
        "colours": [STATES.get(name.partition(":")[0]) or colour(name) for name in names],
        "depths": 1 + max((each.depth for each in found), default=0),
        "begin": [(each.begin_ns - taken_ns) // 1000 for each in found],
        "end": [(each.end_ns - taken_ns) // 1000 for each in found],
        "name": [number[each.name] for each in found],
        "depth": [each.depth for each in found],
        "segments": {at: each.segments for at, each in enumerate(found) if each.segments},
    }


def _counters(trace: ProcessTrace, taken_ns: int) -> Iterator[dict[str, Any]]:
    records = trace.of_kind("counter")
    for number in np.unique(records["name"]).tolist():
        mine = records[records["name"] == number]
        yield {
            "kind": "counter",
            "label": trace.names[number],
            "begin": ((mine["begin_ns"] - taken_ns) // 1000).tolist(),
            "value": mine["value"].tolist(),
        }


def _instants(trace: ProcessTrace, taken_ns: int) -> list[tuple[int, str]]:
    records = trace.of_kind("instant")[-INSTANTS:]
    return [((int(r["begin_ns"]) - taken_ns) // 1000, trace.name(r)) for r in records]
