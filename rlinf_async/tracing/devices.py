"""Where the time of each device goes: who is at work on it, and what its bubbles wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.tracing.account import CONTROLLER
from rlinf_async.tracing.reading import Capture, ProcessTrace

RECENT_S = 60.0
MOMENTS = 20_000
"""Moments of the time that are looked at; a share is known to about half a percent."""
PHASES = {"rollout": frozenset({"render", "rollout", "draw"}), "train": frozenset({"train"})}
"""The controller's stage that speaks for a host, by the host's roles."""
BETWEEN = {"rollout": "its next call", "train": "the script and publishing"}
"""What an idle host waits for while its stage is at work."""

Moments = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Some cores that the same hosts may use, over a recent time."""

    cores: tuple[int, ...]
    busy: Mapping[str, float]
    """Host -> the part of the time in which it was at work here, those that took most first."""
    idle: Mapping[str, float]
    """What nobody was at work for -> the part of the time; with `busy_share` it adds up to 1."""
    seconds: float

    @property
    def busy_share(self) -> float:
        """The part of the time in which these cores had work."""
        return 1.0 - sum(self.idle.values())

    @property
    def name(self) -> str:
        """`core 0`, `cores 1-3`."""
        return f"core{'s' if len(self.cores) > 1 else ''} {_ranges(self.cores)}"

    def __str__(self) -> str:
        work = ", ".join(f"{host} {part:.0%}" for host, part in self.busy.items() if part >= 0.01)
        said = f"{self.name}: at work {self.busy_share:.0%}" + (f" ({work})" if work else "")
        waits = [f"{part:.0%} waits for {why}" for why, part in self.idle.items() if part >= 0.02]
        return "; ".join([said, *waits])


def device_reports(capture: Capture, *, seconds: float = RECENT_S) -> list[Device]:
    """Every device that hosts may use, over the last `seconds` or since the first rollout."""
    hosts = [host for host in capture.status.get("hosts", ()) if host.get("cores")]
    controller = capture.process(CONTROLLER)
    if not hosts or controller is None:
        return []
    since_ns = max(capture.taken_ns - round(seconds * 1e9), _begin_ns(capture, controller))
    if capture.taken_ns - since_ns < 1e9:
        return []
    moments = np.linspace(since_ns, capture.taken_ns, MOMENTS, endpoint=False, dtype=np.int64)
    view = _View(capture, controller, hosts, moments)
    return [view.device(cores) for cores in _shared_alike(hosts)]


def _begin_ns(capture: Capture, controller: ProcessTrace) -> int:
    """When the first rollout that is known began, and no trace had been overwritten any more."""
    whole = [int(each.records["end_ns"][0]) for each in capture.processes if each.lost]
    spans = controller.of_kind("span")
    named = [at for at, name in enumerate(controller.names) if name == "rollout"]
    spans = spans[np.isin(spans["name"], named)]
    first = int(spans["begin_ns"].min()) if len(spans) else capture.taken_ns
    return max([first, *whole])


def _shared_alike(hosts: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """The cores, those together that the same hosts may use."""
    users: dict[frozenset[str], list[int]] = {}
    for core in sorted({core for host in hosts for core in _all_cores(host)}):
        mine = frozenset(host["name"] for host in hosts if core in _all_cores(host))
        users.setdefault(mine, []).append(core)
    return [tuple(cores) for cores in users.values()]


def _all_cores(host: Mapping[str, Any]) -> set[int]:
    return {*host["cores"], *host.get("cores_beside", ())}


class _View:
    """What hosts and stages were doing at each of `moments`."""

    def __init__(
        self,
        capture: Capture,
        controller: ProcessTrace,
        hosts: Sequence[dict[str, Any]],
        moments: Moments,
    ) -> None:
        self._hosts, self._moments = hosts, moments
        self._seconds = (capture.taken_ns - int(moments[0])) * 1e-9
        self._working = {
            host["name"]: _working(capture.process(host["name"]) or controller, moments)
            for host in hosts
        }
        self._training = np.zeros(len(moments), dtype=bool)
        for host in hosts:
            if _phase(host) == "train":
                self._training |= self._working[host["name"]]
        self._waits = {stage: dict(_waits(controller, stage, moments)) for stage in PHASES}

    def device(self, cores: tuple[int, ...]) -> Device:
        """The report of `cores`."""
        mine = [host for host in self._hosts if set(cores) <= _all_cores(host)]
        busy, load = {}, np.zeros(len(self._moments))
        for host in mine:
            here = self._load(host, set(cores))
            load += here
            busy[host["name"]] = float(here.mean()) / len(cores)
        idle = 1.0 - np.minimum(load / len(cores), 1.0)
        return Device(
            cores=cores,
            busy=dict(sorted(busy.items(), key=lambda item: -item[1])),
            idle=dict(sorted(self._reasons(mine, idle), key=lambda item: -item[1])),
            seconds=self._seconds,
        )

    def _load(self, host: dict[str, Any], cores: set[int]) -> npt.NDArray[np.float64]:
        """How many of `cores` a host keeps at work at each moment."""
        load = np.zeros(len(self._moments))
        times = ((host["cores"], ~self._training), (host.get("cores_beside"), self._training))
        for given, when in times:
            used = set(given or host["cores"])
            # A learner's threads fill its cores; every other host has one thread at work.
            of_it = 1.0 if _phase(host) == "train" else 1.0 / len(used)
            load += self._working[host["name"]] * when * len(used & cores) * of_it
        return load

    def _reasons(
        self, hosts: Sequence[dict[str, Any]], idle: npt.NDArray[np.float64]
    ) -> Iterator[tuple[str, float]]:
        """What the bubbles wait for: the first reason of the phases that may work here counts."""
        left = idle.copy()
        phases = [phase for phase in PHASES if any(_phase(host) == phase for host in hosts)]
        for why, flags in [each for phase in phases for each in self._waits[phase].items()]:
            yield why, float((left * flags).mean())
            left = left * ~flags
        if phases and phases[0] == "rollout":
            others = {h["name"] for h in self._hosts if _phase(h) == "rollout"}
            slower = np.zeros(len(left), dtype=bool)
            for name in others - {host["name"] for host in hosts}:
                slower |= self._working[name]
            yield "slower hosts", float((left * slower).mean())
            left = left * ~slower
        yield BETWEEN[phases[0]] if phases else "work", float(left.mean())


def _phase(host: Mapping[str, Any]) -> str:
    roles = set(str(host.get("roles", "")).split("+"))
    return next((phase for phase, known in PHASES.items() if roles & known), "rollout")


def _working(trace: ProcessTrace, moments: Moments) -> Flags:
    """Whether a thread that works for calls was in one."""
    threads = [at for at, name in enumerate(trace.threads) if name.startswith("work-")]
    spans = trace.of_kind("span")
    spans = spans[np.isin(spans["thread"], threads)]
    flags = _inside(spans["begin_ns"], spans["end_ns"], moments)
    if trace.state.get("command", "idle") != "idle" and "at_ns" in trace.state:
        # What has not ended is not recorded yet; the process tells of it.
        since_ns = trace.state["at_ns"] - trace.state["command_age_s"] * 1e9
        if not len(spans) or since_ns >= int(spans["end_ns"].max()):
            flags = flags | (moments >= since_ns)
    return flags


def _waits(trace: ProcessTrace, stage: str, moments: Moments) -> Iterator[tuple[str, Flags]]:
    """What a stage waited for in words, and when."""
    waits = trace.of_kind("wait")
    account = trace.state.get("stages", {}).get(stage, {})
    present = f"{stage}:{account.get('state', '')}:{account.get('on', '')}"
    names = [name for name in trace.names if name.startswith(f"{stage}:")]
    for name in dict.fromkeys([*names, present]):
        _, state, on = (*name.split(":", 2), "")[:3]
        if state in ("", "working"):
            continue
        mine = waits[waits["name"] == list(trace.names).index(name)] if name in names else waits[:0]
        flags = _inside(mine["begin_ns"], mine["end_ns"], moments)
        if name == present and not (len(mine) and mine["end_ns"].max() > account["since_ns"]):
            flags = flags | (moments >= account["since_ns"])
        yield why(state, on), flags


def why(state: str, on: str) -> str:
    """A wait in words: what it is for."""
    if state == "devices":
        return f"cores that {on} holds"
    if state == "weights":
        return f"weights from {'train' if on == 'publish' else on}"
    if state == "paused":
        return "whoever paused it"
    return {"batches": "rollouts", "segments": "rollouts"}.get(on, on or state)


def _inside(begins: Moments, ends: Moments, moments: Moments) -> Flags:
    """Whether each moment lies in any of the intervals, which may overlap."""
    if not len(begins):
        return np.zeros(len(moments), dtype=bool)
    order = np.argsort(begins)
    begins, latest = begins[order], np.maximum.accumulate(ends[order])
    at = np.searchsorted(begins, moments, side="right") - 1
    inside: Flags = (at >= 0) & (latest[np.maximum(at, 0)] > moments)
    return inside


def _ranges(cores: Sequence[int]) -> str:
    """`0-2,5` of 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and parts[-1][-1] == core - 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
