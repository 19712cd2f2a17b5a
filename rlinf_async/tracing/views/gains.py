"""What more lag would gain: the batches that were recorded, played again with other lags.

With w_h(n) the time that host h worked for batch n, t(n) the time of its training and K the lag,

    begin of h on n  H_h(n) = max(end of h on n-1, T(n-K-1))     version n-K is live
    end of training  T(n)   = max(T(n-1), max over h of the end of h on n) + t(n)

which is the pipeline's own rule with exact lag, phases on devices of their own. No plan can do
more than keep every core at work: where they are for a part u of the time, no gain is above 1/u.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_async.tracing.account import CONTROLLER
from rlinf_async.tracing.devices import device_reports
from rlinf_async.tracing.reading import Capture, ProcessTrace
from rlinf_async.tracing.recorder import CELLS

FEWEST = 4
"""Batches that must have been recorded whole."""
LAGS = (1, 2, 4)
WORTH = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Seconds of work for one batch."""

    collect_s: Mapping[str, float]
    """By host."""
    train_s: float


def replay_s(batches: Sequence[BatchTimes], max_lag: int) -> float:
    """Seconds in which the batches are all trained on."""
    ends: dict[str, float] = {}
    trained = [0.0]
    for number, batch in enumerate(batches):
        live_s = trained[max(number - max_lag, 0)]
        for host, work_s in batch.collect_s.items():
            ends[host] = max(ends.get(host, 0.0), live_s) + work_s
        ready_s = max(ends[host] for host in batch.collect_s)
        trained.append(max(trained[-1], ready_s) + batch.train_s)
    return trained[-1]


def expected_gains(capture: Capture) -> dict[int, float]:
    """Lag -> how many times faster than with the present one; empty where too little is known.

    Phases that take turns on the same cores overlap as little with any lag: what is said of them
    holds for a mode in which they need not. In serial mode there is no such gain.
    """
    now = capture.status.get("max_lag")
    batches = batch_times(capture)
    if now is None or len(batches) < FEWEST or capture.run.get("mode") == "serial":
        return {}
    before_s, most = replay_s(batches, now), _most(capture)
    return {lag: min(before_s / replay_s(batches, lag), most) for lag in LAGS if lag > now}


def _most(capture: Capture) -> float:
    """The gain if every core were at work all the time."""
    devices = device_reports(capture)
    work = sum(each.busy_share * len(each.cores) for each in devices)
    return sum(len(each.cores) for each in devices) / work if work > 0 else float("inf")


def gain_words(gains: Mapping[int, float]) -> str:
    """`expected gain of K=1: 1.7x`, of the least lag that gives nearly all; or that none is."""
    if not gains:
        return ""
    most = max(gains.values())
    if most < WORTH:
        return "more lag would gain little"
    lag = next(lag for lag, gain in gains.items() if gain >= 1.0 + 0.9 * (most - 1.0))
    return f"expected gain of K={lag}: {gains[lag]:.1f}x"


def batch_times(capture: Capture) -> list[BatchTimes]:
    """The batches whose collecting and training were recorded whole, in order."""
    collected: dict[int, dict[str, float]] = {}
    trained: dict[int, float] = {}
    cells: dict[int, int] = {}
    publish_s = _publish_s(capture)
    for trace in capture.processes:
        for batch, (count, work_s) in _work(trace, "render.begin", "rollout.collect").items():
            cells[batch] = cells.get(batch, 0) + count
            collected.setdefault(batch, {})[trace.process] = work_s
        for batch, (_, work_s) in _work(trace, "train.gather", "train.train").items():
            trained[batch] = work_s + publish_s
    whole = max(cells.values(), default=0)
    return [
        BatchTimes(collect_s=collected[batch], train_s=trained[batch])
        for batch in sorted(trained)
        if cells.get(batch) == whole
    ]


def _publish_s(capture: Capture) -> float:
    controller = capture.process(CONTROLLER)
    if controller is None or "publish" not in controller.names:
        return 0.0
    spans = controller.of_kind("span")
    spans = spans[spans["name"] == list(controller.names).index("publish")]
    return float(np.median(spans["end_ns"] - spans["begin_ns"])) * 1e-9 if len(spans) else 0.0


def _work(trace: ProcessTrace, within: str, around: str) -> dict[int, tuple[int, float]]:
    """Batch -> segments handled, and seconds of the spans `around` that handled them.

    The flows are those in spans named `within`.
    """
    flows, spans = trace.of_kind("flow"), trace.of_kind("span")
    names = list(trace.names)
    if not len(flows) or within not in names:
        return {}
    inner = _called(spans, names, within)
    flows = flows[_index_of(inner, flows["begin_ns"]) >= 0]
    outer = _called(spans, names, around)
    found: dict[int, tuple[int, float]] = {}
    seen: set[int] = set()
    for at, value in zip(_index_of(outer, flows["begin_ns"]).tolist(), flows["value"], strict=True):
        if at < 0:
            continue
        batch = int(value) // CELLS
        count, work_s = found.get(batch, (0, 0.0))
        length_s = 0.0 if at in seen else float(outer["end_ns"][at] - outer["begin_ns"][at]) * 1e-9
        seen.add(at)
        found[batch] = (count + 1, work_s + length_s)
    return found


def _called(spans: np.ndarray, names: list[str], name: str) -> np.ndarray:
    if name not in names:
        return spans[:0]
    mine = spans[spans["name"] == names.index(name)]
    ordered: np.ndarray = mine[np.argsort(mine["begin_ns"])]
    return ordered


def _index_of(spans: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """The span that each moment lies in, of spans that do not overlap; -1: none."""
    if not len(spans):
        return np.full(len(moments), -1)
    at = np.searchsorted(spans["begin_ns"], moments, side="right") - 1
    return np.where((at >= 0) & (spans["end_ns"][np.maximum(at, 0)] >= moments), at, -1)
