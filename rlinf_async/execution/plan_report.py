"""What a job's planner knows, as one plain document: for `plan` and for whoever keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf_async.scheduling.live_costs import Sizes
from rlinf_async.scheduling.live_planner import LivePlanner

if TYPE_CHECKING:
    from rlinf_async.execution.crew import Crew


def plan_document(planner: LivePlanner, crew: Crew) -> dict[str, Any]:
    """The first decision of `planner`: every candidate, where its time goes, and why one won."""
    record, costs = planner.records[0], planner.costs
    candidates = []
    for choice in planner.choices:
        if choice.probe:
            continue
        seconds, low, high = record.predicted_s[choice.name]
        candidates.append(
            {
                "plan": choice.name,
                "predicted_s": seconds,
                "low_s": low,
                "high_s": high,
                "measured_s": record.measured_s.get(choice.name),
                "parts_s": costs.parts(choice.sizes),
                "cores": choice.sizes.cores,
            }
        )
    return {
        "env_steps": costs.env_steps,
        "max_lag": costs.max_lag,
        "iterations_measured": record.iteration,
        "candidates": sorted(
            candidates, key=lambda each: each["measured_s"] or each["predicted_s"]
        ),
        "chosen": record.chosen,
        "reason": record.reason,
        "memory_bytes": {"rows": crew.pool_bytes(), "hosts": crew.peak_bytes()},
    }


def predicted_on(planner: LivePlanner, cores: int) -> list[dict[str, Any]]:
    """Every arrangement on another number of cores, fastest first, by the costs learnt so far.

    What lies outside the measured range is marked as `extrapolated`.
    """
    found = []
    for choice in planner.choices:
        sizes = _resized(choice.sizes, cores)
        if choice.probe or sizes is None:
            continue
        each = planner.costs.predict(sizes)
        found.append(
            {
                "plan": choice.name,
                "predicted_s": each.seconds,
                "low_s": each.low,
                "high_s": each.high,
                "parts_s": planner.costs.parts(sizes),
                "cores": sizes.cores,
                "extrapolated": each.extrapolated,
            }
        )
    return sorted(found, key=lambda each: each["predicted_s"])


def _resized(sizes: Sizes, cores: int) -> Sizes | None:
    """The same arrangement on other cores; None where training would leave none to collecting."""
    if sizes.sharing == "alternate":
        return replace(sizes, cores=cores)
    if cores < 2:
        return None
    collecting = cores if sizes.sharing == "yield" else cores - 1
    return replace(sizes, cores=collecting, cores_beside=cores - 1)
