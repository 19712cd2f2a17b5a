"""Plans: what is offered, what is predicted, and which one is chosen."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.costs import Linear
from rlinf_async.scheduling.planner import candidates, choose, evaluate, worth_switching
from rlinf_async.scheduling.plans import Flow, FlowCosts, Group, Plan


def line(fixed, each):
    """Seconds of one call: a fixed part, and a part for each unit of the fullest device."""
    return lambda units, devices: fixed + each * np.ceil(units / np.asarray(devices))


def on_gpus(render, rollout, train, **more):
    phases = {"render": render, "rollout": rollout, "train": train}
    return FlowCosts(seconds={(name, "gpu"): cost for name, cost in phases.items()}, **more)


FLAT_RENDER = line(0.8 - 0.05 / 3, 0.05 / 30)
FLAT_POLICY = line(0.15, 0.025)
SMALL = Flow(slots=64, horizon=16)
LINEAR = on_gpus(line(0.0, 0.01), line(0.0, 0.02), line(0.0, 0.001))


def of(found, *groups, depth=1):
    """The candidate whose groups hold exactly these phases."""
    wanted = {frozenset(group.split("+")) for group in groups}
    return next(
        each
        for each in found
        if {frozenset(g.phases) for g in each.plan.groups} == wanted and each.plan.depth == depth
    )


def test_every_way_of_sharing_is_offered_for_two_devices():
    found = list(candidates(SMALL, LINEAR, {"gpu": 2}))
    assert {each.plan.mode for each in found} == {"collocated", "hybrid"}
    split = of(found, "render+rollout", "train")
    assert [group.devices for group in split.plan.groups] == [1, 1]
    assert of(found, "render", "rollout+train", depth=2)


def test_a_phase_may_get_exactly_one_device():
    cheap_train = on_gpus(line(0.0, 0.01), line(0.0, 0.01), line(0.01, 0.0))
    best = of(
        candidates(dataclasses.replace(SMALL, max_lag=1), cheap_train, {"gpu": 5}),
        "render+rollout",
        "train",
    )
    assert {g.phases: g.devices for g in best.plan.groups} == {
        ("render", "rollout"): 4,
        ("train",): 1,
    }


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 7, 8])
def test_splitting_at_lag_0_never_beats_sharing_when_scaling_is_linear_and_switching_free(devices):
    found = list(candidates(SMALL, LINEAR, {"gpu": devices}))
    best = min(found, key=lambda each: each.seconds)
    shared = of(found, "render+rollout+train")
    assert best.seconds >= shared.seconds * (1 - 0.05)  # but for whole slots on whole devices
    for each in found:
        total = SMALL.horizon * 64 * 0.03 + 64 * 16 * 0.001
        assert each.seconds >= total / devices * (1 - 1e-9)


def test_more_lag_than_one_gains_nothing_with_constant_times():
    plan = Plan(groups=(Group(phases=("render", "rollout"), devices=2, kind="gpu"),
                        Group(phases=("train",), devices=2, kind="gpu")))  # fmt: skip
    seconds = [
        evaluate(plan, dataclasses.replace(SMALL, max_lag=k), LINEAR).seconds for k in (0, 1, 2, 4)
    ]
    parts = evaluate(plan, SMALL, LINEAR).parts
    r, t, p = parts["collect"], parts["train"], parts["publish"]
    assert seconds[0] == pytest.approx(r + t + p)
    assert seconds[1] == pytest.approx(max(r, t + p, (r + t + p) / 2))
    assert seconds[1] == seconds[2] == seconds[3]


def test_lag_gains_nothing_on_shared_devices():
    shared = Plan(groups=(Group(phases=("render", "rollout", "train"), devices=4, kind="gpu"),))
    seconds = {
        evaluate(shared, dataclasses.replace(SMALL, max_lag=k), LINEAR).seconds for k in (0, 1, 3)
    }
    assert len(seconds) == 1


def test_depth_gains_what_the_formula_says():
    flow = Flow(slots=40, horizon=100)
    costs = on_gpus(FLAT_RENDER, FLAT_POLICY, line(1.0, 0.0))
    groups = tuple(
        Group(phases=(p,), devices=1, kind="gpu") for p in ("render", "rollout", "train")
    )
    seconds = {
        k: evaluate(Plan(groups=groups, depth=k), flow, costs).parts["collect"] for k in (1, 2, 4)
    }
    env, pol = (
        {n: float(FLAT_RENDER(n, 1)) for n in (10, 20, 40)},
        {n: float(FLAT_POLICY(n, 1)) for n in (10, 20, 40)},
    )
    gain = (env[40] + pol[40]) / max(2 * env[20], 2 * pol[20])
    assert seconds[1] / seconds[2] == pytest.approx(gain, rel=0.01)
    assert gain == pytest.approx(1.2, rel=0.03)
    assert gain <= 1.5
    # A flat simulator called four times as often costs four times as much.
    assert seconds[4] > seconds[1]


def test_depth_on_a_shared_device_is_not_even_offered():
    depths = {
        each.plan.depth
        for each in candidates(SMALL, LINEAR, {"gpu": 4})
        if any({"render", "rollout"} <= set(g.phases) for g in each.plan.groups)
    }
    assert depths == {1}


def test_parallel_branches_overlap_on_their_own_devices():
    flow = Flow(
        slots=8,
        horizon=4,
        renders=False,
        after={"reward": ("collect",), "inference": ("collect",), "train": ("reward", "inference")},
    )
    one = line(1.0, 0.0)
    costs = FlowCosts(seconds={(p, "gpu"): one for p in flow.phases})
    apart = Plan(groups=tuple(Group(phases=(p,), devices=1, kind="gpu") for p in flow.phases))
    together = Plan(groups=(Group(phases=flow.phases, devices=4, kind="gpu"),))
    assert evaluate(apart, flow, costs).seconds == pytest.approx(4 * 1.0 + 1.0 + 1.0)
    assert evaluate(together, flow, costs).seconds == pytest.approx(4 * 1.0 + 1.0 + 1.0 + 1.0)


def test_any_number_of_devices_and_slots_will_do():
    flow = Flow(slots=37, horizon=5, max_lag=1)
    best = choose(flow, LINEAR, {"gpu": 7}).chosen
    assert sum(group.devices for group in best.plan.groups) <= 7
    assert math.isfinite(best.seconds)


def test_plan_over_memory_is_refused_with_the_numbers_or_swaps_at_a_price():
    memory = {"rollout": Linear(constant=60.0), "train": Linear(constant=70.0)}
    roomy = dataclasses.replace(LINEAR, memory=memory, capacity={"gpu": 200.0})
    tight = dataclasses.replace(
        roomy, capacity={"gpu": 100.0}, switch={"train": 3.0, "collect": 2.0}
    )
    small = dataclasses.replace(roomy, capacity={"gpu": 65.0})
    one = {"gpu": 1}
    both = choose(SMALL, roomy, one).chosen
    swapping = choose(SMALL, tight, one).chosen
    assert both.swaps == (False,)
    assert swapping.swaps == (True,)
    assert swapping.seconds == pytest.approx(both.seconds + 5.0)
    with pytest.raises(BadInput, match="needs 70 bytes of a gpu device of 65"):
        choose(SMALL, small, one)


def test_switching_linking_and_publishing_cost_and_may_decide():
    lagged = dataclasses.replace(SMALL, max_lag=1)
    # Training that does not scale wastes all devices but one while it holds them.
    split_pays = on_gpus(line(0.0, 0.01), line(0.0, 0.02), line(8.0, 0.0))
    groups = {"render+rollout": 2, "train": 2}
    split = Plan(groups=tuple(Group(phases=tuple(n.split("+")), devices=d, kind="gpu")
                              for n, d in groups.items()))  # fmt: skip
    free = evaluate(split, SMALL, LINEAR).seconds
    dear = dataclasses.replace(
        LINEAR, link=Linear(constant=0.5, slope=1e-3), batch_bytes=1000, publish=Linear(slope=0.25)
    )
    assert evaluate(split, SMALL, dear).seconds == pytest.approx(free + 1.5 + 0.5)
    assert choose(lagged, split_pays, {"gpu": 4}).chosen.plan.mode != "collocated"
    very_dear = dataclasses.replace(split_pays, link=Linear(constant=100.0))
    assert choose(lagged, very_dear, {"gpu": 4}).chosen.plan.mode == "collocated"


def test_phases_stay_on_kinds_that_can_run_them():
    costs = FlowCosts(
        seconds={
            ("render", "cpu"): line(0.0, 0.01),
            ("rollout", "gpu"): line(0.0, 0.01),
            ("train", "gpu"): line(0.0, 0.001),
        }
    )
    for each in candidates(SMALL, costs, {"cpu": 4, "gpu": 2}):
        kinds = {phase: group.kind for group in each.plan.groups for phase in group.phases}
        assert kinds == {"render": "cpu", "rollout": "gpu", "train": "gpu"}


def brute_force(flow, costs, devices):
    """The best of all partitions, depths and counts, each evaluated by itself."""
    best = math.inf
    for each in candidates(flow, costs, {"gpu": devices}):
        size = len(each.plan.groups)
        for counts in itertools.product(range(1, devices + 1), repeat=size):
            if sum(counts) <= devices:
                groups = tuple(
                    dataclasses.replace(g, devices=c)
                    for g, c in zip(each.plan.groups, counts, strict=True)
                )
                plan = dataclasses.replace(each.plan, groups=groups)
                best = min(best, evaluate(plan, flow, costs).seconds)
    return best


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 2))
def test_choice_is_the_optimum_for_few_devices(seed, devices, lag):
    draw = np.random.default_rng(seed)
    costs = on_gpus(*(line(draw.uniform(0, 1), draw.uniform(0, 0.05)) for _ in range(3)))
    flow = Flow(slots=int(draw.integers(4, 100)), horizon=8, max_lag=lag, units={"train": 50})
    chosen = choose(flow, costs, {"gpu": devices}).chosen.seconds
    assert chosen == pytest.approx(brute_force(flow, costs, devices), rel=1e-9)


@pytest.mark.parametrize("lag", [0, 1])
def test_plan_for_many_devices_is_near_its_lower_bound(lag):
    flow = Flow(slots=27 * 1024, horizon=80, max_lag=lag)
    costs = on_gpus(line(0.0, 0.03), line(0.0, 0.02), line(0.0, 1e-3))
    work_s = 80 * 27 * 1024 * (0.03 + 0.02 + 1e-3)
    chosen = choose(flow, costs, {"gpu": 1024}).chosen
    assert work_s / 1024 * (1 - 1e-9) <= chosen.seconds <= work_s / 1024 * 1.05


def test_decision_explains_itself():
    decision = choose(SMALL, LINEAR, {"gpu": 3})
    assert decision.candidates[0] is decision.chosen
    assert "bound by" in decision.reason
    assert "slower" in decision.reason
    assert decision.with_measured(3.0).measured_s == 3.0


def test_a_switch_must_pay_and_noise_never_does():
    pays = {"iterations_left": 100, "switch_s": 1.0}
    assert worth_switching(1.0, 0.8, 0.01, **pays)
    assert not worth_switching(1.0, 0.98, 0.001, **pays)  # below 3 %
    assert not worth_switching(1.0, 0.8, 0.15, **pays)  # within two standard errors
    assert not worth_switching(1.0, 0.8, 0.01, iterations_left=5, switch_s=1.0)


def test_impossible_flows_are_refused():
    with pytest.raises(BadInput, match="waits for unknown"):
        Flow(slots=1, horizon=1, after={"train": ("nothing",)})
    with pytest.raises(BadInput, match="no phase 'train'"):
        Flow(slots=1, horizon=1, after={"reward": ("collect",)})
    with pytest.raises(BadInput, match="wait for each other"):
        _ = Flow(slots=1, horizon=1, after={"train": ("a",), "a": ("train",)}).phases
    with pytest.raises(BadInput, match="no device fits"):
        choose(SMALL, LINEAR, {"cpu": 4})
