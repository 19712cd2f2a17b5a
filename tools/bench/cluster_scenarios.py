"""What `simulate_cluster.py` plays besides: a blind planner, and a cluster that changes.

Everything here is simulated.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import zmq

from rlinf_async.communication.messages import Call, decode, encode
from rlinf_async.scheduling.costs import Drift
from rlinf_async.scheduling.planner import Candidate, choose, evaluate, worth_switching
from rlinf_async.scheduling.plans import Flow, FlowCosts
from rlinf_async.scheduling.profiles import PROFILES, Links, Profile
from rlinf_async.scheduling.rescoring import choose_with_variation, simulated_s
from rlinf_async.scheduling.simulation import SimulatedRun

DEVICES = 64
ITERATIONS_AFTER = 60


def controller_message_s() -> float:
    """CPU seconds of one message that the controller sends or hears: codec and socket.

    Half of what both ends of an ipc socket take together, measured here and now.
    """
    message = Call(
        call_id=7,
        worker="rollout",
        method="collect",
        arguments={"cell": 3, "batch": 12, "version": 11, "row": 5},
    )
    rounds = 2000
    with (
        tempfile.TemporaryDirectory() as folder,
        zmq.Context() as context,
        context.socket(zmq.PAIR) as one,
        context.socket(zmq.PAIR) as other,
    ):
        one.bind(f"ipc://{folder}/pair")
        other.connect(f"ipc://{folder}/pair")
        began = time.process_time()
        for _ in range(rounds):
            one.send(encode(message))
            decode(other.recv())
        return (time.process_time() - began) / rounds / 2


def ablations() -> dict[str, dict[str, Any]]:
    """Auto's time over that of a planner that cannot see something, by what and workload.

    Both plans are simulated with all costs. `infeasible`: the blind plan does not fit into memory.
    Contention is left out of the list: simulated devices are exclusive and have none.
    """
    blind: dict[str, Callable[[FlowCosts], FlowCosts]] = {
        "no memory": lambda costs: replace(costs, capacity={}),
        "no switch cost": lambda costs: replace(costs, switch={}),
        "no links": lambda costs: replace(costs, link=Links().between(1), batch_bytes=0),
        "profile 20 % wrong": _wrong,
    }
    found: dict[str, dict[str, Any]] = {name: {} for name in (*blind, "no variance")}
    for profile in PROFILES.values():
        flow, costs = _case(profile)
        sighted, _ = choose_with_variation(flow, costs, {"gpu": DEVICES}, profile.variation)
        reference_s = _seconds(sighted.chosen, flow, costs, profile)
        for name, change in blind.items():
            plan = choose_with_variation(flow, change(costs), {"gpu": DEVICES}, profile.variation)
            found[name][profile.name] = _ratio(plan[0].chosen, flow, costs, profile, reference_s)
        plain = choose(flow, costs, {"gpu": DEVICES}).chosen
        found["no variance"][profile.name] = _ratio(plain, flow, costs, profile, reference_s)
    return found


def recoveries() -> dict[str, dict[str, Any]]:
    """Iterations until the plan has changed, and the speed afterwards over that of a fresh plan."""
    found: dict[str, dict[str, Any]] = {}
    for profile in PROFILES.values():
        slow = "render" if profile.renders else "rollout"
        found[profile.name] = {
            "simulator or generation 5x slower": _drift(profile, {slow: 5.0}),
            "training 5x slower": _drift(profile, {"train": 5.0}),
            "straggling node, everything 2x slower": _straggler(profile),
            "8 devices lost": _loss(profile),
        }
    return found


def _drift(profile: Profile, factors: Mapping[str, float]) -> dict[str, Any]:
    """The load changes while nobody says so: noticed by the times of the phases."""
    flow, before = _case(profile)
    after = _scaled(before, factors)
    plan = choose(flow, before, {"gpu": DEVICES}).chosen
    watched = {phase: Drift() for phase in flow.phases}
    known = before
    for iteration in range(1, ITERATIONS_AFTER + 1):
        times = _phase_seconds(plan, flow, after, profile, seed=iteration)
        expected = _phase_seconds(plan, flow, known, profile, seed=None)
        logs = {phase: math.log(times[phase] / expected[phase]) for phase in times}
        if not any([watched[phase].add(value) for phase, value in logs.items()]):
            continue
        known = _scaled(known, {phase: math.exp(value) for phase, value in logs.items()})
        better = choose(flow, known, {"gpu": DEVICES}).chosen
        now = evaluate(plan.plan, flow, known).seconds
        left = ITERATIONS_AFTER - iteration
        gain = worth_switching(
            now, better.seconds, 0.0, iterations_left=left, switch_s=_move_s(profile)
        )
        plan = better if gain else plan
        return _outcome(plan, flow, after, profile, iteration, changed=gain)
    return _outcome(plan, flow, after, profile, None, changed=False)


def _straggler(profile: Profile) -> dict[str, Any]:
    """A node that is twice as slow holds up all calls; without its 8 devices none is held up."""
    flow, costs = _case(profile)
    slow = _scaled(costs, dict.fromkeys(flow.phases, 2.0))
    held_up = _seconds(choose(flow, slow, {"gpu": DEVICES}).chosen, flow, slow, profile)
    without = choose(flow, costs, {"gpu": DEVICES - 8}).chosen
    return {"gain_without_node": held_up / _seconds(without, flow, costs, profile)}


def _loss(profile: Profile) -> dict[str, Any]:
    """A loss is told, not inferred: the next plan comes at once and costs its switch."""
    flow, costs = _case(profile)
    whole = _seconds(choose(flow, costs, {"gpu": DEVICES}).chosen, flow, costs, profile)
    less = _seconds(choose(flow, costs, {"gpu": DEVICES - 8}).chosen, flow, costs, profile)
    return {"slower": less / whole, "switch_s": _move_s(profile)}


def _outcome(
    plan: Candidate,
    flow: Flow,
    costs: FlowCosts,
    profile: Profile,
    iterations: int | None,
    *,
    changed: bool,
) -> dict[str, Any]:
    fresh = choose(flow, costs, {"gpu": DEVICES}).chosen
    ratio = _seconds(fresh, flow, costs, profile) / _seconds(plan, flow, costs, profile)
    return {"iterations": iterations, "changed": changed, "rate_over_fresh_plan": ratio}


def _phase_seconds(
    plan: Candidate, flow: Flow, costs: FlowCosts, profile: Profile, seed: int | None
) -> dict[str, float]:
    """Seconds that each phase worked in one iteration; without a seed nothing varies."""
    variation = profile.variation if seed is not None else {}
    run = SimulatedRun(plan, flow, costs, iterations=4, variation=variation, seed=seed or 0)
    outcome = run.run()
    return {phase: share * outcome.seconds for phase, share in outcome.busy.items() if share}


def _case(profile: Profile) -> tuple[Flow, FlowCosts]:
    flow = profile.flow(DEVICES, 1)
    return flow, profile.costs(flow, DEVICES, Links())


def _seconds(candidate: Candidate, flow: Flow, costs: FlowCosts, profile: Profile) -> float:
    true = evaluate(candidate.plan, flow, costs)
    return simulated_s(true, flow, costs, profile.variation, seeds=3, iterations=8)


def _ratio(
    candidate: Candidate, flow: Flow, costs: FlowCosts, profile: Profile, reference_s: float
) -> float | str:
    true = evaluate(candidate.plan, flow, costs)
    if true.refused:
        return "infeasible"
    return _seconds(candidate, flow, costs, profile) / reference_s


def _scaled(costs: FlowCosts, factors: Mapping[str, float]) -> FlowCosts:
    def times(cost: Any, factor: float) -> Any:
        return lambda units, devices: factor * cost(units, devices)

    seconds = {
        (phase, kind): times(cost, factors.get(phase, 1.0))
        for (phase, kind), cost in costs.seconds.items()
    }
    return replace(costs, seconds=seconds)


def _wrong(costs: FlowCosts) -> FlowCosts:
    rng = random.Random(0)
    phases = sorted({phase for phase, _ in costs.seconds})
    return _scaled(costs, {phase: rng.choice((0.8, 1.2)) for phase in phases})


def _move_s(profile: Profile) -> float:
    return sum(profile.switch_s.values())
