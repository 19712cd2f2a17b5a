"""Placement: who runs what where, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.arrangements import while_training
from rlinf_async.scheduling.placement import MODES, POLICY_PLACES, Placement, place


def roles(placement: Placement) -> dict[str, tuple[str, ...]]:
    return {host.name: host.roles for host in placement.hosts}


def test_serial_is_one_host_with_everything():
    placement = place(mode="serial", cores=[0, 1], cells=4)
    (host,) = placement.hosts
    assert (host.name, host.cores, host.cells) == ("serial", (0, 1), (0, 1, 2, 3))
    assert host.roles == ("render", "rollout", "train")
    assert placement.sharing == "alternate"


def test_collocated_hosts_have_a_core_each_and_the_first_trains():
    placement = place(mode="collocated", cores=[2, 5], cells=5)
    assert roles(placement) == {
        "host-0": ("render", "rollout", "train"),
        "host-1": ("render", "rollout"),
    }
    assert [host.cores for host in placement.hosts] == [(2,), (5,)]
    assert [host.cells for host in placement.hosts] == [(0, 1), (2, 3, 4)]
    assert placement.sharing == "alternate"
    assert placement.train_host.name == "host-0"
    assert placement.notes == ()


def test_hosts_with_idle_cores_compute_shards_of_the_gradient_where_phases_alternate():
    gradients = {
        mode: place(mode=mode, cores=range(4), cells=8).gradient
        for mode in ("collocated", "disaggregated", "hybrid")
    }
    assert gradients["collocated"] == ("host-1", "host-2", "host-3")  # host-0 trains
    assert gradients["disaggregated"] == gradients["hybrid"] == ()
    assert place(mode="serial", cores=range(4), cells=8).gradient == ()
    # Two hosts a core take turns, and one of them is enough; a central policy trains.
    assert place(mode="collocated", cores=range(2), cells=8, hosts=4).gradient == ("host-1",)
    central = place(mode="collocated", cores=range(2), cells=8, policy="central")
    assert central.gradient == ("host-0",)


def test_more_collocated_hosts_than_cores_take_turns():
    placement = place(mode="collocated", cores=[0, 1], cells=4, hosts=4)
    assert [host.cores for host in placement.hosts] == [(0,), (1,), (0,), (1,)]
    assert placement.notes == ("4 hosts share 2 cores",)


def test_a_central_policy_has_its_own_host_and_trains_when_collocated():
    placement = place(mode="collocated", cores=[0, 1], cells=2, policy="central")
    assert roles(placement) == {
        "host-0": ("render",),
        "host-1": ("render",),
        "policy": ("rollout", "train"),
    }
    assert placement.rollout_host(1).name == "policy"
    assert placement.render_host(1).name == "host-1"


def test_disaggregated_training_owns_the_last_core():
    placement = place(mode="disaggregated", cores=[0, 1, 2, 3], cells=8)
    assert [host.name for host in placement.hosts] == ["host-0", "host-1", "host-2", "train"]
    assert [host.cores for host in placement.hosts] == [(0,), (1,), (2,), (3,)]
    assert placement.sharing == "own"
    assert placement.train_host.cells == ()


def test_disaggregated_with_a_central_policy_shares_the_render_cores():
    placement = place(mode="disaggregated", cores=[0, 1, 2], cells=4, policy="central")
    cores = {host.name: host.cores for host in placement.hosts}
    assert cores == {"host-0": (0,), "host-1": (1,), "policy": (0, 1), "train": (2,)}
    assert placement.train_host.roles == ("train",)


def test_one_core_is_shared_and_the_user_is_told():
    placement = place(mode="disaggregated", cores=[7], cells=2)
    assert {host.cores for host in placement.hosts} == {(7,)}
    assert "share core 7" in placement.notes[0]


def test_in_hybrid_mode_collecting_has_all_cores_and_leaves_those_of_training():
    placement = place(mode="hybrid", cores=[1, 3, 5], cells=6, policy="central", depth=2)
    assert placement.sharing == "yield"
    assert placement.depth == 2
    assert while_training(placement) == dict.fromkeys(
        ("host-0", "host-1", "host-2", "policy"), (1, 3)
    )
    assert while_training(place(mode="collocated", cores=[1, 3], cells=2)) == {}


@given(
    mode=st.sampled_from(MODES),
    policy=st.sampled_from(POLICY_PLACES),
    cores=st.sets(st.integers(0, 30), min_size=1, max_size=9),
    cells=st.integers(1, 20),
    hosts=st.integers(1, 20) | st.none(),
)
def test_every_cell_has_one_renderer_and_one_actor(mode, policy, cores, cells, hosts):
    assume(mode != "hybrid" or len(cores) > 1)
    hosts = None if hosts is None or mode == "serial" else min(hosts, cells)
    placement = place(mode=mode, cores=sorted(cores), cells=cells, hosts=hosts, policy=policy)
    for role in ("render", "rollout"):
        mine = [cell for host in placement.hosts if role in host.roles for cell in host.cells]
        assert mine == list(range(cells))
    sizes = [len(host.cells) for host in placement.hosts if "render" in host.roles]
    assert max(sizes) - min(sizes) <= 1
    assert sum("train" in host.roles for host in placement.hosts) == 1
    assert all(host.cores and set(host.cores) <= cores for host in placement.hosts)
    assert len({host.name for host in placement.hosts}) == len(placement.hosts)
    if hosts is not None:
        assert len(sizes) == hosts
    if mode == "disaggregated" and len(cores) > 1:
        others = {c for host in placement.hosts if host.name != "train" for c in host.cores}
        assert others.isdisjoint(placement.train_host.cores)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"hosts": 0}, "hosts >= 1; got 0; use 1"),
        ({"hosts": 5}, "hosts <= 4.*got 5; use hosts = 4"),
        ({"mode": "hybrid", "cores": [3]}, "at least 2 cores; got core 3; use mode collocated"),
        ({"mode": "serial", "hosts": 2}, "one process.*hosts = 2"),
        ({"mode": "colocated"}, "did you mean 'collocated'"),
        ({"policy": "centre"}, "did you mean 'central'"),
        ({"cells": 0}, "cells >= 1"),
        ({"cores": []}, "at least one core"),
        ({"cores": [1, 1]}, "each once"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(wrong, text):
    with pytest.raises(BadInput, match=text):
        place(**{"mode": "collocated", "cores": [0, 1], "cells": 4, **wrong})


def test_a_cell_that_does_not_exist_has_no_host():
    with pytest.raises(KeyError, match="cell 9"):
        place(mode="serial", cores=[0], cells=4).render_host(9)


def test_describe_names_hosts_roles_cores_and_cells():
    lines = place(mode="disaggregated", cores=[0, 1, 3], cells=4, hosts=1).describe()
    assert lines == [
        "disaggregated, policy beside: collecting and training overlap",
        "host-0: render+rollout on cores 0, cells 0-3",
        "train: train on cores 3",
        "note: no host renders on cores 1: there are 1 hosts",
    ]
