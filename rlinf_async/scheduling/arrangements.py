"""What may change while a run goes on: the same hosts with other cores and another way of sharing.

Environments and learner stay in their processes, so changing an arrangement moves no state: it
changes on which cores processes may run, and which phases wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlinf_async.scheduling.live_costs import Sizes
from rlinf_async.scheduling.placement import (
    HostPlan,
    Mode,
    Placement,
    gradient_hosts,
)

ARRANGED: tuple[Mode, ...] = ("collocated", "hybrid", "disaggregated")
NARROW = "narrow"
"""Phases alternate, and those that collect keep to the cores that they have in disaggregated mode.
Never the best: it is measured because it tells what collecting costs there."""


def arrangements(placement: Placement, cores: Sequence[int]) -> dict[str, Placement]:
    """Every arrangement of the hosts of `placement` on `cores`, `narrow` included, by name."""
    found: dict[str, Placement] = {mode: arranged(placement, mode, cores) for mode in ARRANGED}
    found[NARROW] = replace(found["disaggregated"], sharing="alternate")
    return found


def arranged(placement: Placement, mode: Mode, cores: Sequence[int]) -> Placement:
    """The hosts of `placement`, whose training has a process of its own, arranged as `mode`.

    collocated     every host on its core, phases alternate
    disaggregated  hosts that collect share all cores but those of training
    hybrid         every host on its core; see `while_training`
    """
    train = placement.train_host.cores
    rest = tuple(core for core in cores if core not in train)
    if mode == "disaggregated" and rest:
        hosts = tuple(h if "train" in h.roles else replace(h, cores=rest) for h in placement.hosts)
        return replace(placement, mode=mode, hosts=hosts, sharing="own", gradient=())
    hosts = _spread(placement.hosts, cores)
    if mode == "hybrid":
        return replace(placement, mode=mode, hosts=hosts, sharing="yield", gradient=())
    gradient = gradient_hosts(hosts)
    return replace(placement, mode=mode, hosts=hosts, sharing="alternate", gradient=gradient)


def while_training(placement: Placement) -> Mapping[str, tuple[int, ...]]:
    """Host -> the cores that it must keep to while training runs; empty unless it yields."""
    if placement.sharing != "yield":
        return {}
    train = set(training_cores(placement))
    collecting = [host for host in placement.hosts if not {"train", "gradient"} & set(host.roles)]
    left = tuple(sorted({core for host in collecting for core in host.cores} - train))
    # All of them, not only those that lose their core: else two would share one and others none.
    return {host.name: left for host in collecting}


def lease_devices(placement: Placement) -> dict[str, tuple[int, ...]]:
    """Phase -> the cores that it excludes others from.

    Where collecting yields, it has those of training only as long as these are free.
    """
    collecting, train = collecting_cores(placement), training_cores(placement)
    if placement.sharing == "alternate":
        everything = tuple(sorted({*collecting, *train}))
        return {"rollout": everything, "train": everything}
    if placement.sharing == "yield":
        collecting = tuple(core for core in collecting if core not in train)
    return {"rollout": collecting, "train": train}


def sizes(placement: Placement, shards: int = 1) -> Sizes:
    """What the costs have to know of an arrangement, the gradient being computed in `shards`."""
    collecting, train = collecting_cores(placement), training_cores(placement)
    beside = 0
    if placement.sharing != "alternate":
        beside = len([core for core in collecting if core not in train])
    return Sizes(
        sharing=placement.sharing,
        cores=len(collecting),
        cores_beside=beside,
        shards=shards,
        trainers=min(shards, 1 + len(placement.gradient)),
    )


def collecting_cores(placement: Placement) -> tuple[int, ...]:
    """The cores that environments and policy run on, ascending."""
    hosts = [host for host in placement.hosts if {"render", "rollout"} & set(host.roles)]
    return tuple(sorted({core for host in hosts for core in host.cores}))


def training_cores(placement: Placement) -> tuple[int, ...]:
    """The cores of the learner, and of hosts that do nothing but help it, ascending."""
    hosts = [host for host in placement.hosts if {"train", "gradient"} & set(host.roles)]
    return tuple(sorted({core for host in hosts for core in host.cores}))


def _spread(hosts: Sequence[HostPlan], cores: Sequence[int]) -> tuple[HostPlan, ...]:
    """Hosts that render on one core each in turn; one that only acts or draws on all of them."""
    placed, turn = [], 0
    for host in hosts:
        if "render" in host.roles:
            placed.append(replace(host, cores=(cores[turn % len(cores)],)))
            turn += 1
        elif "train" in host.roles:
            placed.append(host)
        else:
            placed.append(replace(host, cores=tuple(cores)))
    return tuple(placed)
