"""What is wrong with a run, in words: stuck, slow or sick. Pure: it reads one capture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlinf_async.tracing.account import (
    CONTROLLER,
    Stage,
    bound_by,
    longest_span_s,
    longest_work_s,
    overlap_gain,
    stages_of,
)
from rlinf_async.tracing.reading import Capture

STUCK_STEP_S = 1.5
STUCK_STAGE_S = 2.0
STUCK_CALL_S = 5.0
"""What takes so long at least, and `OVER_LONGEST` times the longest before, is stuck."""
UNMEASURED_S = 60.0
"""The limit of what has never ended before: the first step, the first call."""
OVER_LONGEST = 10.0
SILENT_S = 3.0
IMBALANCE = 3.0
"""One side that works so many times more than the other bounds the run."""
WARM_ITERATIONS = 3
LATE_MS = 250.0
GROWTH_BYTES_PER_S = 1 << 20
GROWTH_WINDOW_S = 30.0

Kind = Literal["failed", "stuck", "slow", "sick"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    kind: Kind
    subject: str
    """Who it is: a process, a stage, or the run."""
    sentence: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}: {self.sentence}", *(f"  {e}" for e in self.evidence)])


def diagnose(capture: Capture, process_states: Mapping[int, str] | None = None) -> list[Finding]:
    """Everything that is wrong, the gravest first; empty for a healthy run.

    `process_states`: by process id the kernel's state letter (`T`: stopped), empty where it has
    ended; what is not named is taken to run.
    """
    stages = stages_of(capture)
    found = [*_failed(capture)]
    stuck = [
        *_processes(capture, process_states or {}),
        *_environments(capture),
        *_consumers(capture, stages),
        *_calls(capture),
    ]
    if stuck:
        chain = waits_for_whom(stages, capture.status.get("streams", ()))
        found += [_with(each, chain) for each in _once(stuck)]
    elif not found:
        found += _slow(capture, stages_of(capture, recent=True))
    return [*found, *_sick(capture)]


def waits_for_whom(stages: Mapping[str, Stage], streams: Any) -> list[str]:
    """The chain of waits that begins at the learner, a line for each link."""
    writers = {each["name"]: each["writer"] or "rollout" for each in streams}
    chain, name, seen = [], "train", set()
    while name in stages and name not in seen:
        seen.add(name)
        stage = stages[name]
        if stage.state == "working":
            chain.append(f"{name} is at work for {stage.for_s:.1f} s")
            break
        chain.append(f"{name} waits for {stage.on or stage.state} for {stage.for_s:.1f} s")
        name = writers.get(stage.on, {"publish": "train"}.get(stage.on, stage.on))
    return chain


def _with(finding: Finding, chain: list[str]) -> Finding:
    return Finding(
        kind=finding.kind,
        subject=finding.subject,
        sentence=finding.sentence,
        evidence=(*finding.evidence, *chain),
    )


def _once(found: list[Finding]) -> list[Finding]:
    """The first finding about each subject: the most exact one."""
    first: dict[str, Finding] = {}
    for each in found:
        first.setdefault(each.subject, each)
    return list(first.values())


def _failed(capture: Capture) -> Iterator[Finding]:
    failure = capture.status.get("failure")
    if failure:
        iteration = capture.status.get("status", {}).get("iteration", 0)
        yield Finding(
            kind="failed",
            subject="run",
            sentence=f"the run ended in iteration {iteration + 1}: {failure}",
        )


def _hosts(capture: Capture) -> list[dict[str, Any]]:
    hosts: list[dict[str, Any]] = capture.status.get("hosts", [])
    return hosts


def _processes(capture: Capture, states: Mapping[int, str]) -> Iterator[Finding]:
    for host in _hosts(capture):
        name, state = host["name"], states.get(host["pid"] or 0)
        if host.get("lost"):
            yield Finding(kind="stuck", subject=name, sentence=host["lost"])
        elif state == "T":
            yield Finding(
                kind="stuck", subject=name, sentence=f"{name} (pid {host['pid']}) is stopped"
            )
        elif state == "":
            yield Finding(
                kind="stuck", subject=name, sentence=f"{name} (pid {host['pid']}) has ended"
            )
        elif host.get("silent_s", 0.0) > SILENT_S and "command" in host:
            yield Finding(
                kind="stuck",
                subject=name,
                sentence=f"{name} has said nothing for {host['silent_s']:.1f} s; its last command "
                f"was {host['command']}",
            )


def _environments(capture: Capture) -> Iterator[Finding]:
    late_s = (capture.taken_ns - capture.status.get("at_ns", capture.taken_ns)) * 1e-9
    for host in _hosts(capture):
        age_s, slowest_s = host["at_work_s"] + late_s, host["slowest_s"]
        limit_s = max(STUCK_STEP_S, OVER_LONGEST * slowest_s) if slowest_s else UNMEASURED_S
        if host["at_work"] and age_s > limit_s:
            before = f"the slowest before took {slowest_s:.3g} s" if slowest_s else "its first"
            yield Finding(
                kind="stuck",
                subject=host["name"],
                sentence=f"an environment of {host['name']} has been in {host['at_work']} for "
                f"{age_s:.1f} s ({before})",
            )


def _consumers(capture: Capture, stages: Mapping[str, Stage]) -> Iterator[Finding]:
    """Stages that leave a full stream alone. The learner's calls are judged by their own times."""
    controller = capture.process(CONTROLLER)
    for stream in capture.status.get("streams", ()):
        reader = stages.get(stream["reader"])
        if reader is None or controller is None or reader.name == "train" or not stream["fill"]:
            continue
        if reader.state == "input" and reader.on == stream["name"]:
            continue
        longest_s = longest_work_s(controller, reader.name)
        if reader.for_s <= max(STUCK_STAGE_S, OVER_LONGEST * longest_s) or reader.state == "space":
            continue
        doing = "has been at work" if reader.state == "working" else f"waits for {reader.on}"
        yield Finding(
            kind="stuck",
            subject=reader.name,
            sentence=f"stage {reader.name} takes nothing from stream {stream['name']} "
            f"({stream['fill']} of {stream['capacity']} held): it {doing} for {reader.for_s:.1f} s",
        )


def _calls(capture: Capture) -> Iterator[Finding]:
    late_s = (capture.taken_ns - capture.status.get("at_ns", capture.taken_ns)) * 1e-9
    for host in _hosts(capture):
        trace = capture.process(host["name"])
        if trace is None or not trace.state or trace.state["command"] == "idle":
            continue
        command = trace.state["command"]
        age_s = trace.state["command_age_s"] + late_s
        longest_s = longest_span_s(trace, command)
        limit_s = max(STUCK_CALL_S, OVER_LONGEST * longest_s) if longest_s else UNMEASURED_S
        if age_s > limit_s:
            before = f"the longest before took {longest_s:.3g} s" if longest_s else "its first"
            yield Finding(
                kind="stuck",
                subject=host["name"],
                sentence=f"{host['name']} has been in {command} for {age_s:.1f} s ({before})",
            )


def _slow(capture: Capture, stages: Mapping[str, Stage]) -> Iterator[Finding]:
    if capture.status.get("status", {}).get("iteration", 0) < WARM_ITERATIONS:
        return
    who, ratio = bound_by(stages)
    # On shared cores the phases take turns: collecting for long is no fault then, it is the work.
    mode = capture.status["status"].get("plan") or capture.run.get("mode") or ""
    overlapping = mode.split()[0:1] in (["disaggregated"], ["hybrid"])
    overlapping = overlapping and capture.status.get("max_lag", 0) > 0
    if ratio >= IMBALANCE and (who == "the learner" or overlapping):
        idle = "collecting" if who == "the learner" else "the learner"
        yield Finding(
            kind="slow",
            subject="train" if who == "the learner" else "rollout",
            sentence=f"the run is bound by {who}, which works {ratio:.1f} times as long as {idle}",
            evidence=_advice(capture, stages, who),
        )


def _advice(capture: Capture, stages: Mapping[str, Stage], who: str) -> tuple[str, ...]:
    gain = overlap_gain(stages)
    advice = []
    if capture.status.get("max_lag") == 0 and gain >= 1.1:
        advice.append(f"overlapping both (max_lag=1) would make it up to {gain:.1f} times as fast")
    if who == "the learner":
        advice.append("fewer epochs, larger minibatches or more cores for training would help")
    else:
        advice.append("more hosts or cores for collecting would help")
    return tuple(advice)


def _sick(capture: Capture) -> Iterator[Finding]:
    status = capture.status.get("status", {})
    bad = [name for name, value in status.get("losses", {}).items() if not _finite(value)]
    if bad:
        yield Finding(kind="sick", subject="train", sentence=f"not finite: {', '.join(bad)}")
    skipped = status.get("losses", {}).get("skipped_steps") or 0
    if skipped:
        yield Finding(
            kind="sick",
            subject="train",
            sentence=f"{skipped:g} steps of the last iteration were skipped: they were not finite",
        )
    if status.get("loop_lag_ms", 0.0) > LATE_MS:
        yield Finding(
            kind="sick",
            subject=CONTROLLER,
            sentence=f"the controller's loop was {status['loop_lag_ms']:.0f} ms late",
            evidence=(
                "the log names what it was doing (event loop_blocked), or the cores are full",
            ),
        )
    max_lag = capture.status.get("max_lag")
    if max_lag is not None and status and status["lag"][2] > max_lag:
        sentence = f"a sample was {status['lag'][2]} versions old, and max_lag is {max_lag}"
        yield Finding(kind="sick", subject="train", sentence=sentence)
    yield from _growing(capture.status.get("history", []))


def _growing(history: list[list[float]]) -> Iterator[Finding]:
    """Memory that grew through each third of the time since the first iterations."""
    rows = [row for row in history if row[4] > 0 and row[1] >= WARM_ITERATIONS]
    if len(rows) < 9 or (rows[-1][0] - rows[0][0]) * 1e-9 < GROWTH_WINDOW_S:
        return
    third = len(rows) // 3
    levels = [min(row[4] for row in rows[at * third : (at + 1) * third]) for at in range(3)]
    third_s = (rows[-1][0] - rows[0][0]) * 1e-9 / 3
    # What loads late grows once; the slower half counts.
    per_s = min(levels[1] - levels[0], levels[2] - levels[1]) / third_s
    if per_s > GROWTH_BYTES_PER_S:
        yield Finding(
            kind="sick",
            subject="hosts",
            sentence=f"the hosts' memory grows by {per_s * 60 / 2**20:.0f} MiB a minute",
        )


def _finite(value: Any) -> bool:
    # JSON has no NaN: what was not finite arrives as null.
    return value is not None and math.isfinite(value)
