"""Profiles of workloads, and plans scored with times that vary."""

from __future__ import annotations

import pytest

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.planner import choose
from rlinf_async.scheduling.profiles import CPU_BOUND, FLAT, PROFILES, Links, phase_cost, profile
from rlinf_async.scheduling.rescoring import choose_with_variation, simulated_s


@pytest.mark.parametrize("name", PROFILES)
def test_costs_pass_through_what_was_measured(name):
    for phase, points in PROFILES[name].measured.items():
        cost = phase_cost(phase, points)
        for units, seconds in points.items():
            assert cost.predict(units, 1).seconds == pytest.approx(seconds, rel=0.25)
            assert not cost.predict(units, 1).extrapolated
        assert cost.predict(2 * max(points), 1).extrapolated


def test_a_profile_that_bends_is_not_a_line():
    bent = phase_cost("render", CPU_BOUND.measured["render"])
    assert bent.predict(64, 1).seconds == pytest.approx(18.5, rel=0.1)
    assert bent.predict(32, 1).seconds == pytest.approx(4.66, rel=0.1)


def test_training_takes_its_share_of_collecting_on_all_devices():
    flow = FLAT.flow(8)
    found = choose(flow, FLAT.costs(flow, 8), {"gpu": 8}).candidates
    shared = next(each for each in found if each.plan.mode == "collocated")
    assert shared.parts["train"] == pytest.approx(FLAT.train_share * shared.parts["collect"])


def test_publishing_costs_more_the_more_receive_and_crossing_nodes_costs_more():
    links = Links()
    assert links.publish(1e9, 64)(64) > links.publish(1e9, 8)(8)
    assert links.between(64)(10**9) > links.between(8)(10**9)


def test_the_chosen_plan_is_the_fastest_of_those_simulated_and_every_mode_is_among_them():
    flow = CPU_BOUND.flow(8, 1)
    costs = CPU_BOUND.costs(flow, 8, Links())
    decision, scored = choose_with_variation(flow, costs, {"gpu": 8}, CPU_BOUND.variation)
    assert decision.chosen is scored[0].candidate
    assert [each.seconds for each in scored] == sorted(each.seconds for each in scored)
    assert {each.candidate.plan.mode for each in scored} == {
        "collocated",
        "disaggregated",
        "hybrid",
    }
    again = simulated_s(decision.chosen, flow, costs, CPU_BOUND.variation, iterations=8)
    assert again == scored[0].seconds


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(BadInput, match="did you mean 'flat'"):
        profile("flatt")
