"""Placements in words: what they mean, and what is said of those that cannot work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.arrangements import lease_devices, while_training
from rlinf_async.scheduling.grammar import read_placement
from rlinf_async.scheduling.placement import place


def hosts(text: str, cores: int = 4, cells: int = 8) -> dict[str, tuple]:
    found = read_placement(text, cores=range(cores), cells=cells)
    return {host.name: (host.roles, host.cores, host.cells) for host in found.hosts}


def test_phases_on_cores_of_their_own():
    found = read_placement("render+rollout=0-2; train=3", cores=range(4), cells=8)
    assert found == place(mode="disaggregated", cores=range(4), cells=8)


def test_all_phases_in_the_same_processes_alternate():
    found = read_placement("render+rollout+train=0-1", cores=range(2), cells=4)
    assert found.hosts == place(mode="collocated", cores=range(2), cells=4).hosts
    assert (found.mode, found.sharing, found.policy) == ("collocated", "alternate", "beside")


def test_a_core_in_common_is_left_to_training():
    found = read_placement("train=1;render+rollout=0-1", cores=range(2), cells=4)
    assert found == place(mode="hybrid", cores=range(2), cells=4)
    assert set(while_training(found).values()) == {(0,)}


def test_a_central_policy_that_shares_its_core_with_training_alternates_with_it():
    found = read_placement("render=0-2:2; rollout+train=3; depth=2", cores=range(4), cells=9)
    assert (found.mode, found.sharing, found.policy) == ("hybrid", "alternate", "central")
    assert found.depth == 2
    assert found.train_host.name == "policy"
    assert [len(host.cells) for host in found.hosts[:-1]] == [1, 2, 1, 2, 1, 2]
    assert len(set(lease_devices(found).values())) == 1


def test_processes_of_several_devices_and_uneven_counts():
    found = hosts("render=0-4/2; rollout=5; train=5-6", cores=7)
    assert [found[f"host-{n}"][1] for n in range(3)] == [(0, 1), (2, 3), (4,)]
    assert [len(found[f"host-{n}"][2]) for n in range(3)] == [2, 3, 3]
    assert found["train"] == (("train",), (5, 6), ())


def test_of_several_processes_that_train_one_holds_the_learner():
    found = read_placement("render+rollout=0-1; train=2-3:1", cores=range(4), cells=8)
    assert (found.mode, found.train_host.cores, found.gradient) == (
        "disaggregated", (2,), ("train-1",),
    )  # fmt: skip
    assert lease_devices(found) == {"rollout": (0, 1), "train": (2, 3)}
    hybrid = read_placement("render+rollout=0-2; train=2-3:1", cores=range(4), cells=8)
    assert set(while_training(hybrid)) == {"host-0", "host-1", "host-2"}
    assert set(while_training(hybrid).values()) == {(0, 1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("render+rollout=0-2", "no devices for train.*'render\\+rollout=0-2; train=3'"),
        ("rendre+rollout=0; train=1", "did you mean 'render'"),
        ("render+rollout=0-9; train=1", "no device 4.*some of 0,1,2,3"),
        ("render+rollout; train=1", "'render\\+rollout' has no ="),
        ("render+rollout=0; train=x", "'x' is no number from 0"),
        ("render+rollout=2-1; train=3", "'1' is no number from 2"),
        ("render+rollout=0,0; train=1", "named twice"),
        ("render+rollout=0; rollout+train=1", "rollout stands in two entries"),
        ("render+rollout=0-3:4; train=3", "16 processes render.*at most 8"),
        ("render+rollout=0:2/2; train=1", "exclude each other"),
        ("render=0; rollout=1:2; train=3", "rollout is one process.*'rollout=1'"),
        ("render+rollout=0; train=1; depth=0", "'0' is no number from 1"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(text, message):
    with pytest.raises(BadInput, match=message):
        read_placement(text, cores=range(4), cells=8)


core_lists = st.sets(st.integers(0, 5), min_size=1).map(lambda cores: ",".join(map(str, cores)))


@given(render=core_lists, rollout=core_lists, train=core_lists, central=st.booleans())
def test_every_sharing_keeps_phases_apart_or_in_turn(render, rollout, train, central):
    phases = f"render={render};rollout={rollout}" if central else f"render+rollout={render}"
    found = read_placement(f"{phases};train={train}", cores=range(6), cells=6)
    cells = sorted(cell for h in found.hosts if "render" in h.roles for cell in h.cells)
    assert cells == list(range(6))
    devices = lease_devices(found)
    collecting = set(devices["rollout"])
    if found.sharing == "alternate":
        assert collecting & set(devices["train"])
    else:
        assert collecting
        assert not collecting & set(found.train_host.cores)
    if found.sharing == "yield":
        assert all(
            cores and not set(cores) & set(found.train_host.cores)
            for cores in while_training(found).values()
        )
