"""Plans ranked by their periods, and the best of them once more with times that vary.

The period is what constant times would give. Where they vary, whoever waits for the slowest of many
devices, or for a full or empty queue, waits longer, and plans change places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean

from rlinf_async.scheduling.planner import Candidate, Decision, choose
from rlinf_async.scheduling.plans import Flow, FlowCosts
from rlinf_async.scheduling.simulation import SimulatedRun

RESCORED = 5
"""Plans that are simulated: so many of the best, and the best of every mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A plan with what it takes on average."""

    candidate: Candidate
    seconds: float
    """Of an iteration, simulated."""


def simulated_s(
    candidate: Candidate,
    flow: Flow,
    costs: FlowCosts,
    variation: Mapping[str, float],
    *,
    seeds: int = 1,
    iterations: int = 12,
) -> float:
    """Mean seconds of an iteration over `seeds` simulated runs."""
    runs = (
        SimulatedRun(
            candidate, flow, costs, iterations=iterations, variation=variation, seed=seed
        ).run()
        for seed in range(seeds)
    )
    return mean(outcome.seconds for outcome in runs)


def choose_with_variation(
    flow: Flow, costs: FlowCosts, devices: Mapping[str, int], variation: Mapping[str, float]
) -> tuple[Decision, tuple[Scored, ...]]:
    """As `planner.choose`, and the best few of them simulated, fastest first; the first is chosen.

    Raises:
        BadInput: no plan fits.
    """
    decision = choose(flow, costs, devices)
    usable = [each for each in decision.candidates if not each.refused]
    of_modes = {each.plan.mode: each for each in reversed(usable)}
    usable = list({id(each): each for each in (*usable[:RESCORED], *of_modes.values())}.values())
    scored = sorted(
        (
            Scored(candidate=each, seconds=simulated_s(each, flow, costs, variation, iterations=8))
            for each in usable
        ),
        key=lambda each: each.seconds,
    )
    best = scored[0]
    reason = f"{best.seconds:.4g} s an iteration with times that vary; {decision.reason}"
    return replace(decision, chosen=best.candidate, reason=reason), tuple(scored)
