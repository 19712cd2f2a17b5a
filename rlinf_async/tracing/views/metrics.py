"""A run as metrics in Prometheus's text format, version 0.0.4.

A viewer serves them, not the run: whoever asks, however often, costs the run nothing, and the
endpoint comes and goes while it trains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlinf_async.tracing.account import stages_of
from rlinf_async.tracing.reading import Capture

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["gauge", "counter"]
Sample = tuple[Mapping[str, str], float | None]


def to_prometheus(capture: Capture) -> str:
    """The newest status of the run; what is not known yet is left out."""
    run = {"run": str(capture.run.get("id", ""))}
    lines = []
    for name, kind, about, samples in (*_run(capture.status), *_parts(capture)):
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# HELP rlinf_{name} {about}", f"# TYPE rlinf_{name} {kind}"]
            lines += [f"rlinf_{name}{_labels({**run, **own})} {_number(v)}" for own, v in known]
    return "\n".join([*lines, ""])


Family = tuple[str, Kind, str, list[Sample]]


def _run(status: Mapping[str, Any]) -> Iterator[Family]:
    """Of the run as a whole."""
    now = status["status"]
    yield "iterations_total", "counter", "Iterations so far.", [({}, now["iteration"])]
    yield "iterations_planned", "gauge", "Iterations in all.", [({}, now["iterations"])]
    yield "env_steps_total", "counter", "Environment steps so far.", [({}, now["env_steps"])]
    speed = now["env_steps_per_s"]
    yield "env_steps_per_second", "gauge", "Over the last iterations.", [({}, speed)]
    yield "episode_return_mean", "gauge", "Of the last episodes.", [({}, now["return_mean"])]
    lags: list[Sample] = [
        ({"of": of}, value) for of, value in zip(("min", "mean", "max"), now["lag"], strict=True)
    ]
    yield "lag_versions", "gauge", "Age of samples that were trained on.", lags
    late_s = now["loop_lag_ms"] / 1000
    yield "loop_late_seconds", "gauge", "Longest delay of the controller's loop.", [({}, late_s)]
    losses: list[Sample] = [({"name": name}, value) for name, value in now["losses"].items()]
    yield "training", "gauge", "Values of the last training report.", losses
    yield "cpu_seconds_total", "counter", "Of all processes.", [({}, status.get("cpu_s"))]
    dropped = status.get("dropped")
    yield "viewer_dropped_total", "counter", "Packets dropped for this viewer.", [({}, dropped)]


def _parts(capture: Capture) -> Iterator[Family]:
    """Of its segments, streams, stages and hosts."""
    status = capture.status
    credits = status.get("credits", {})
    ends: list[Sample] = [
        ({"state": state}, credits.get(state)) for state in ("admitted", "trained", "dropped")
    ]
    yield "segments_total", "counter", "Segments that came so far.", ends
    under_way: list[Sample] = [
        ({"state": state}, credits.get(state)) for state in ("queued", "running")
    ]
    yield "segments", "gauge", "Segments that are there now.", under_way
    rows: list[Sample] = [
        ({"state": "free"}, credits.get("rows_free")),
        ({"state": "all"}, credits.get("rows")),
    ]
    yield "rows", "gauge", "Rows of the segments' pool.", rows
    streams = [({"stream": each["name"]}, each) for each in status["streams"]]
    fills: list[Sample] = [(labels, each["fill"]) for labels, each in streams]
    yield "stream_items", "gauge", "Items that wait in a stream.", fills
    bounds: list[Sample] = [(labels, each["capacity"]) for labels, each in streams]
    yield "stream_capacity", "gauge", "Items that a stream may hold.", bounds
    spent: list[Sample] = [
        ({"stage": name, "state": state, "on": on}, seconds)
        for name, stage in stages_of(capture).items()
        for (state, on), seconds in stage.spent_s.items()
    ]
    yield "stage_seconds_total", "counter", "Where the time of a stage went.", spent
    memory: list[Sample] = [
        ({"host": host["name"]}, host.get("rss_bytes")) for host in status["hosts"]
    ]
    yield "host_resident_bytes", "gauge", "Resident memory of a host.", memory


def _labels(labels: Mapping[str, str]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
