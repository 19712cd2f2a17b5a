"""Where the stages' time goes, in a capture: shares, what bounds the run, and words for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_async.tracing.reading import Capture, ProcessTrace

CONTROLLER = "controller"
KINDS = ("working", "input", "space", "weights", "devices", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage's account."""

    name: str
    process: str
    state: str
    on: str
    """Whom the present state waits for; empty while it works."""
    for_s: float
    """How long it has been in that state."""
    spent_s: Mapping[tuple[str, str], float]
    """Seconds by state and whom it waits for, over `wall_s`."""
    wall_s: float

    def share(self, state: str, on: str | None = None) -> float:
        """The part of its wall time in `state`, on anybody or on one."""
        spent = (
            s for (kind, who), s in self.spent_s.items() if kind == state and on in (None, who)
        )
        return sum(spent) / self.wall_s if self.wall_s > 0 else 0.0

    def shares(self) -> dict[str, float]:
        """The part of its wall time in each state; they add up to 1."""
        return {kind: self.share(kind) for kind in KINDS}


def stages_of(capture: Capture, *, recent: bool = False) -> dict[str, Stage]:
    """Every stage by name, as its process last told of it: since its start or over a minute."""
    return {
        name: _stage(name, trace, account, capture.taken_ns, recent=recent)
        for trace in capture.processes
        for name, account in trace.state.get("stages", {}).items()
    }


def _stage(
    name: str, trace: ProcessTrace, account: dict[str, Any], taken_ns: int, *, recent: bool
) -> Stage:
    began_ns, before = account["began_ns"], {}
    if recent and (earlier := account.get("earlier")) is not None:
        began_ns = earlier["now_ns"]
        before = {(state, on): spent for state, on, spent in earlier["spent"]}
    spent_s = {
        (state, on): (spent - before.get((state, on), 0)) * 1e-9
        for state, on, spent in account["spent"]
    }
    return Stage(
        name=name,
        process=trace.process,
        state=account["state"],
        on=account["on"],
        for_s=(taken_ns - account["since_ns"]) * 1e-9,
        spent_s={key: seconds for key, seconds in spent_s.items() if seconds},
        wall_s=(account["now_ns"] - began_ns) * 1e-9,
    )


def longest_span_s(trace: ProcessTrace, name: str) -> float:
    """The longest span of that name that is recorded; 0 where there is none."""
    if name not in trace.names:
        return 0.0
    spans = trace.of_kind("span")
    spans = spans[spans["name"] == list(trace.names).index(name)]
    return float((spans["end_ns"] - spans["begin_ns"]).max()) * 1e-9 if len(spans) else 0.0


def longest_work_s(trace: ProcessTrace, stage: str) -> float:
    """The longest time between two recorded waits of a stage; 0 before there are two."""
    numbers = [n for n, name in enumerate(trace.names) if name.startswith(f"{stage}:")]
    waits = trace.of_kind("wait")
    waits = waits[np.isin(waits["name"], numbers)]
    if len(waits) < 2:
        return 0.0
    gaps = waits["begin_ns"][1:] - waits["end_ns"][:-1]
    return max(float(gaps.max()), 0.0) * 1e-9


def bound_by(stages: Mapping[str, Stage]) -> tuple[str, float]:
    """What the run is bound by, in words, and how many times more it works than the other side.

    Compares how much of their time the learner and the collecting of segments are at work. Where
    collecting is, its hosts' accounts tell the simulator from the policy.
    """
    learn = stages["train"].share("working") if "train" in stages else 0.0
    # In the controller `train` also counts the script's own work: the learner's clock is exact.
    learner = [each for name, each in stages.items() if name.startswith("train@")]
    if learner:
        learn = max(each.share("working") for each in learner)
    collect = stages["rollout"].share("working") if "rollout" in stages else 0.0
    if learn >= collect:
        return "the learner", learn / max(collect, 1e-6)
    return _collecting(stages), collect / max(learn, 1e-6)


def _collecting(stages: Mapping[str, Stage]) -> str:
    def worked_s(role: str) -> float:
        mine = (each for name, each in stages.items() if name.startswith(f"{role}@"))
        return sum(each.spent_s.get(("working", ""), 0.0) for each in mine)

    render_s, rollout_s = worked_s("render"), worked_s("rollout")
    return "the simulator" if render_s >= rollout_s else "the policy's inference"


def overlap_gain(stages: Mapping[str, Stage]) -> float:
    """How many times faster the run would be if collecting and learning overlapped completely.

    With t_c and t_l the time that each works in an iteration: (t_c + t_l) / max(t_c, t_l).
    """
    learner = [each for name, each in stages.items() if name.startswith("train@")]
    learn_s = sum(each.spent_s.get(("working", ""), 0.0) for each in learner)
    collect_s = stages["rollout"].spent_s.get(("working", ""), 0.0) if "rollout" in stages else 0.0
    return (learn_s + collect_s) / max(learn_s, collect_s, 1e-9)


def wait_words(stages: Mapping[str, Stage]) -> list[str]:
    """One line for each stage: how much it works, and its waits of a twentieth and more."""
    lines = []
    for name, stage in sorted(stages.items()):
        waits = sorted(
            ((s / stage.wall_s, state, on) for (state, on), s in stage.spent_s.items())
            if stage.wall_s > 0
            else (),
            reverse=True,
        )
        told = [
            f"waits {share:.0%} for {FOR[state].format(on=on or 'others')}"
            for share, state, on in waits
            if state != "working" and share >= 0.05
        ]
        lines.append(", ".join([f"{name} works {stage.share('working'):.0%}", *told]))
    return lines


FOR = {
    "input": "input from {on}",
    "space": "space in {on}",
    "weights": "weights from {on}",
    "devices": "devices that {on} holds",
    "paused": "whoever paused it ({on})",
}
"""A wait in words, by state."""
