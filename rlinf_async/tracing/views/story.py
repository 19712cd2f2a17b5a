"""A run in one sentence, from its last minute: who waits for whom, what bounds it, what would help.

train waits 41% for rollouts; rollout is bound by the simulator; expected gain of K=1: 1.3x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rlinf_async.tracing.account import Stage, bound_by, stages_of
from rlinf_async.tracing.devices import why
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.views.gains import expected_gains, gain_words

WORTH_TELLING = 0.05
INNERMOST = 2
PLANS_BYTES = 1 << 18


def story(capture: Capture) -> str:
    """The sentence; empty before the first iteration."""
    stages = stages_of(capture, recent=True)
    if "train" not in stages or not capture.status.get("status", {}).get("iteration"):
        return ""
    who = bound_by(stages)[0]
    train, rollout = _waits(stages["train"]), _waits(stages.get("rollout"))
    if who == "the learner":
        parts = [f"rollout {rollout}"] if rollout else []
        parts.append("the run is bound by the learner")
    else:
        parts = [f"train {train}"] if train else []
        parts.append(f"rollout is bound by {who}")
    return "; ".join([*parts, *filter(None, [gain_words(expected_gains(capture))])])


def _waits(stage: Stage | None) -> str:
    """The longest wait of a stage: `waits 41% for rollouts`; empty if it is short."""
    if stage is None or stage.wall_s <= 0:
        return ""
    waits = [(s / stage.wall_s, key) for key, s in stage.spent_s.items() if key[0] != "working"]
    share, key = max(waits, default=(0.0, ("", "")))
    return f"waits {share:.0%} for {why(*key)}" if share >= WORTH_TELLING else ""


def plans_of(capture: Capture) -> list[dict[str, Any]]:
    """The decisions of the run's planner as they stand in its folder, oldest first."""
    try:
        with Path(capture.run["run_dir"], "plans.jsonl").open("rb") as file:
            file.seek(max(file.seek(0, 2) - PLANS_BYTES, 0))
            lines = file.read().split(b"\n")
    except (OSError, KeyError):
        return []
    found = []
    for line in lines:
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue  # empty, cut off at the beginning, or being written
    return found


def plan_words(plan: Mapping[str, Any]) -> str:
    """`hybrid, 0.343 s predicted, 0.353 s measured; collocated 0.408 s`: seconds an iteration."""
    chosen, measured = plan["chosen"], plan["measured_s"]
    said = [chosen]
    if chosen in plan["predicted_s"]:
        said.append(f"{plan['predicted_s'][chosen][0]:.3g} s predicted")
    if chosen in measured:
        said.append(f"{measured[chosen]:.3g} s measured")
    others = {
        name: measured.get(name, predicted[0])
        for name, predicted in plan["predicted_s"].items()
        if name != chosen
    }
    beside = [f"{name} {seconds:.3g} s" for name, seconds in others.items()]
    return "; ".join([", ".join(said), *([", ".join(beside)] if beside else [])])


def credit_words(credits: Mapping[str, Any]) -> str:
    """`segments: 40 admitted = 4 queued + 4 running + 32 trained + 0 dropped; 4 of 8 rows free`."""
    if not credits:
        return ""
    parts = (f"{credits[name]:,} {name}" for name in ("queued", "running", "trained", "dropped"))
    said = f"segments: {credits['admitted']:,} admitted = {' + '.join(parts)}"
    why_dropped = ", ".join(f"{n} {reason}" for reason, n in credits["drop_reasons"].items())
    rows = f"{credits['rows_free']} of {credits['rows']} rows free" if "rows" in credits else ""
    batches = f"{credits['batches']} of {credits['credits']} batches under way"
    return "; ".join(filter(None, [said, why_dropped, rows, batches]))


def task_lines(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """`cell-0 and 3 more: Collection._admitted (collection.py:215)`: where the tasks wait."""
    return [
        f"{_several(each)}: {' -> '.join(_ends(each['where'])) or 'not begun'}" for each in tasks
    ]


def _ends(chain: Sequence[str]) -> Sequence[str]:
    """Where a chain begins, in the script perhaps, and where it waits."""
    return [chain[0], "...", *chain[-INNERMOST:]] if len(chain) > INNERMOST + 1 else chain


def _several(task: Mapping[str, Any]) -> str:
    name, count = str(task["name"]), task["count"]
    return f"{name} and {count - 1} more" if count > 1 else name
