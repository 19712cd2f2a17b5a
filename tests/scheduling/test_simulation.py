"""The simulation against results that are known exactly, and against the predicted periods."""

import math

import numpy as np
import pytest

from rlinf_async.scheduling.costs import Linear
from rlinf_async.scheduling.planner import candidates, evaluate
from rlinf_async.scheduling.plans import Flow, FlowCosts, Group, Plan
from rlinf_async.scheduling.simulation import Events, Noise, SimulatedRun, Station, Turns


def line(fixed, each):
    return lambda units, devices: fixed + each * np.ceil(units / np.asarray(devices))


COSTS = FlowCosts(
    seconds={
        ("render", "gpu"): line(0.2, 0.010),
        ("rollout", "gpu"): line(0.1, 0.012),
        ("train", "gpu"): line(1.0, 0.002),
    },
    publish=Linear(constant=0.3, slope=0.01),
)


def stations(*phases):
    events = Events()
    groups = tuple(Group(phases=(phase,), devices=1) for phase in phases)
    turns = Turns(Plan(groups=groups), {})
    return events, [Station(events, turns, phase) for phase in phases]


def test_waiting_in_an_m_m_1_queue_is_what_theory_says():
    events, [station] = stations("only")
    rng = np.random.default_rng(0)
    load, count, waits = 0.7, 60_000, []

    def arrive():
        came = events.now_s
        waits_at_end = rng.exponential(load)
        station.serve(waits_at_end, lambda: waits.append(events.now_s - came))
        if len(waits) < count:
            events.after(rng.exponential(1.0), arrive)

    arrive()
    events.run()
    # Mean time in the system: service / (1 - load).
    assert np.mean(waits) == pytest.approx(load / (1 - load), rel=0.08)


def test_two_exponential_stations_with_two_jobs():
    events, (first, second) = stations("a", "b")
    rng = np.random.default_rng(1)
    rounds = 0

    def go(job):
        first.serve(rng.exponential(1.0), lambda: then(job))

    def then(job):
        nonlocal rounds
        rounds += 1
        if rounds < 40_000:
            second.serve(rng.exponential(1.0), lambda: go(job))

    go(0)
    go(1)
    events.run()
    # Balanced closed network, N jobs, S stations: throughput N / (N + S - 1).
    assert rounds / events.now_s == pytest.approx(2 / 3, rel=0.03)


def test_the_slowest_of_many_devices_is_waited_for():
    noise = Noise({"render": 0.3}, seed=2)
    means = {d: np.mean([noise.factor("render", d) for _ in range(20_000)]) for d in (1, 8)}
    assert means[1] == pytest.approx(1.0, abs=0.01)
    assert means[8] == pytest.approx(1.48, abs=0.02)
    assert noise.factor("train", 8) == 1.0


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_without_variation_every_plan_takes_its_predicted_period(lag):
    flow = Flow(slots=48, horizon=30, max_lag=lag)
    for each in candidates(flow, COSTS, {"gpu": 5}):
        outcome = SimulatedRun(each, flow, COSTS, iterations=12).run(skip=4)
        assert outcome.seconds == pytest.approx(each.seconds, rel=0.04), each.plan.describe()


def test_switching_is_paid_where_phases_do_not_fit_together():
    flow = Flow(slots=16, horizon=5)
    tight = FlowCosts(
        seconds=COSTS.seconds,
        memory={"rollout": Linear(constant=6.0), "train": Linear(constant=6.0)},
        capacity={"gpu": 10.0},
        switch={"collect": 2.0, "train": 3.0},
    )
    groups = (Group(phases=("render",), devices=1, kind="gpu"),
              Group(phases=("rollout", "train"), devices=1, kind="gpu"))  # fmt: skip
    candidate = evaluate(Plan(groups=groups), flow, tight)
    outcome = SimulatedRun(candidate, flow, tight, iterations=10).run()
    assert candidate.swaps == (False, True)
    assert outcome.seconds == pytest.approx(candidate.seconds, rel=0.01)
    assert outcome.switches == 2 * 10 - 1


def test_variation_costs_more_than_the_period_and_depth_buys_it_back():
    flow = Flow(slots=16, horizon=200)
    even = {p: (lambda units, devices: 1.0 * units / 16) for p in ("render", "rollout")}
    costs = FlowCosts(seconds={(p, "gpu"): cost for p, cost in even.items()}
                      | {("train", "gpu"): lambda units, devices: 0.001})  # fmt: skip
    groups = tuple(Group(phases=(p,), devices=1, kind="gpu") for p in flow.phases)
    over = {}
    for depth in (2, 4):
        candidate = evaluate(Plan(groups=groups, depth=depth), flow, costs)
        varied = SimulatedRun(candidate, flow, costs, iterations=12, seed=3,
                              variation={"render": 0.5, "rollout": 0.5}).run()  # fmt: skip
        over[depth] = varied.seconds / candidate.seconds
    assert over[2] == pytest.approx(1.26, abs=0.05)
    assert over[4] == pytest.approx(1.09, abs=0.05)


def test_the_same_seed_gives_the_same_run():
    flow = Flow(slots=16, horizon=10, max_lag=1)
    candidate = next(candidates(flow, COSTS, {"gpu": 4}))
    noise = {"render": 0.4}

    def once(seed):
        return (
            SimulatedRun(candidate, flow, COSTS, iterations=6, variation=noise, seed=seed)
            .run()
            .seconds
        )

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_work_is_conserved():
    flow = Flow(slots=16, horizon=10, max_lag=1)
    for each in candidates(flow, COSTS, {"gpu": 4}):
        outcome = SimulatedRun(each, flow, COSTS, iterations=8).run()
        assert all(share <= 1.0 + 1e-9 for share in outcome.busy.values())
        assert math.isfinite(outcome.messages_per_s)
