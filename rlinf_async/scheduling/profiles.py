"""Profiles of workloads on clusters: what phases cost on one kind of device, with where it is from.

A profile is data for what-if questions and for the simulated cluster; a running job never uses one,
it measures. What lies outside the fitted range is extrapolated, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.errors import BadInput, nearest
from rlinf_async.scheduling.costs import Linear, PhaseCost, Sample
from rlinf_async.scheduling.plans import COLLECT, Flow, FlowCosts

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How fast devices reach each other, by whether they stand in one node."""

    node_devices: int = 8
    node_bytes_per_s: float = 300e9
    cluster_bytes_per_s: float = 25e9
    latency_s: float = 1e-4

    def between(self, devices: int) -> Linear:
        """Of a batch from one group to another, on a cluster of `devices`."""
        crossing = devices > self.node_devices
        speed = self.cluster_bytes_per_s if crossing else self.node_bytes_per_s
        return Linear(constant=self.latency_s, slope=1.0 / speed)

    def publish(self, weights_bytes: float, devices: int) -> Linear:
        """Of weights, by receivers: along a tree of nodes, then each receiver's own copy.

        The tree is as deep as the whole cluster; per receiver there is its acknowledgement.
        """
        nodes = math.ceil(devices / self.node_devices)
        tree_s = math.log2(max(1, nodes)) * weights_bytes / self.cluster_bytes_per_s
        copy_s = weights_bytes / self.node_bytes_per_s
        return Linear(constant=tree_s + copy_s + self.latency_s, slope=ACKNOWLEDGE_S)


ACKNOWLEDGE_S = 5e-5
"""Of the controller, for one receiver of new weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One workload on devices of one kind."""

    name: str
    origin: str
    """Where the figures come from."""
    measured: Mapping[str, Mapping[int, float]]
    """Phase -> units on one device -> seconds of one call (of a chunk-step where collecting)."""
    slots_per_device: int
    horizon: int
    train_share: float
    """Seconds to train on all devices over those to collect on all devices."""
    renders: bool = True
    after: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"train": (COLLECT,)})
    memory: Mapping[str, Linear] = field(default_factory=dict)
    """Phase -> bytes of a device, by units on it."""
    capacity_bytes: float = math.inf
    switch_s: Mapping[str, float] = field(default_factory=dict)
    weights_bytes: float = 0.0
    bytes_per_unit: float = 0.0
    """Of a batch, for each slot and chunk-step."""
    variation: Mapping[str, float] = field(default_factory=dict)
    """Phase -> coefficient of variation of one device's call."""

    def flow(self, devices: int, max_lag: int = 0, *, strong: int | None = None) -> Flow:
        """As many slots as `devices` have together, or those of `strong` devices however many."""
        slots = self.slots_per_device * (strong or devices)
        return Flow(
            slots=slots,
            horizon=self.horizon,
            max_lag=max_lag,
            after=self.after,
            renders=self.renders,
        )

    def costs(self, flow: Flow, devices: int, links: Links | None = None) -> FlowCosts:
        """On `devices` of kind `gpu`; `links` None: moving data costs nothing."""
        seconds: dict[tuple[str, str], Any] = {
            (phase, "gpu"): phase_cost(phase, points).seconds
            for phase, points in self.measured.items()
        }
        collect = self._collect_s(flow, devices, seconds)
        behind = [phase for phase in self.after if (phase, "gpu") not in seconds]
        for phase in behind:
            work_s = self.train_share * collect * devices / len(behind)
            seconds[phase, "gpu"] = shared(work_s / flow.units_of(phase))
        batch_bytes = int(self.bytes_per_unit * flow.slots * flow.horizon)
        return FlowCosts(
            seconds=seconds,
            publish=Linear() if links is None else links.publish(self.weights_bytes, devices),
            link=Linear() if links is None else links.between(devices),
            switch=self.switch_s,
            batch_bytes=batch_bytes,
            memory=self.memory,
            capacity={"gpu": self.capacity_bytes} if math.isfinite(self.capacity_bytes) else {},
        )

    def _collect_s(self, flow: Flow, devices: int, seconds: Mapping[tuple[str, str], Any]) -> float:
        phases = ("render", "rollout") if flow.renders else ("rollout",)
        step = sum(float(seconds[phase, "gpu"](flow.slots, devices)) for phase in phases)
        return flow.horizon * step


def shared(unit_s: float) -> Callable[[int, Any], Any]:
    """A phase whose work is divided evenly: `unit_s` seconds of one device for each unit."""
    cost = PhaseCost("shared")
    for units in (1, 1_000_000):
        cost.add(Sample(units=units, devices=1, seconds=unit_s * units))
    return cost.seconds


def phase_cost(phase: str, points: Mapping[int, float]) -> PhaseCost:
    """The cost model fitted to seconds by units on one device."""
    cost = PhaseCost(phase)
    for units, seconds in points.items():
        cost.add(Sample(units=units, devices=1, seconds=seconds))
    return cost


CPU_BOUND = Profile(
    name="cpu-bound",
    origin="a manipulation suite that simulates on the CPU and draws on the GPU, with a VLA of 7 "
    "billion parameters; seconds of a chunk-step published for one GPU, 4 to 64 environments",
    measured={
        "render": {4: 0.61, 8: 1.23, 16: 2.46, 32: 4.66, 64: 18.5},
        "rollout": {4: 0.6, 8: 1.01, 16: 2.12, 32: 3.72, 64: 15.3},
    },
    slots_per_device=16,
    horizon=64,
    train_share=0.35,
    memory={
        "rollout": Linear(constant=16 * GIB, slope=0.2 * GIB),
        "render": Linear(constant=2 * GIB, slope=0.3 * GIB),
        "train": Linear(constant=60 * GIB),
    },
    capacity_bytes=80 * GIB,
    switch_s={COLLECT: 4.0, "train": 6.0},
    weights_bytes=14e9,
    bytes_per_unit=3e5,
    variation={"render": 0.15, "rollout": 0.05, "train": 0.03},
)

FLAT = Profile(
    name="flat",
    origin="a simulator on the GPU whose step takes about as long for 10 environments as for 40, "
    "with a VLA; seconds of a chunk-step published for one GPU, 10 to 40 environments",
    measured={
        "render": {10: 0.8, 20: 0.817, 40: 0.85},
        "rollout": {10: 0.4, 20: 0.65, 40: 1.15},
    },
    slots_per_device=27,
    horizon=80,
    train_share=1.0,
    weights_bytes=7e9,
    bytes_per_unit=2e5,
    variation={"render": 0.05, "rollout": 0.05, "train": 0.03},
)

LANGUAGE = Profile(
    name="language",
    origin="our own: sequences with log-normal lengths, generated until the longest of a device "
    "ends; log-probs of a reference and rewards follow side by side. No measured figures",
    measured={"rollout": {16: 22.0, 32: 26.0, 64: 34.0, 128: 50.0}},
    slots_per_device=64,
    horizon=1,
    train_share=0.9,
    renders=False,
    after={
        "inference": (COLLECT,),
        "reward": (COLLECT,),
        "train": ("inference", "reward"),
    },
    memory={
        "rollout": Linear(constant=30 * GIB, slope=0.4 * GIB),
        "inference": Linear(constant=16 * GIB),
        "reward": Linear(constant=4 * GIB),
        "train": Linear(constant=64 * GIB),
    },
    capacity_bytes=80 * GIB,
    switch_s={COLLECT: 3.0, "inference": 1.5, "reward": 0.2, "train": 5.0},
    weights_bytes=14e9,
    bytes_per_unit=4e4,
    variation={"rollout": 0.35, "inference": 0.1, "reward": 0.3, "train": 0.05},
)

PROFILES: Mapping[str, Profile] = {each.name: each for each in (CPU_BOUND, FLAT, LANGUAGE)}


def profile(name: str) -> Profile:
    """The profile of that name; BadInput with the nearest one if there is none."""
    if name not in PROFILES:
        raise BadInput(
            "profile",
            f"unknown profile {name!r}",
            expected=" or ".join(PROFILES),
            fix=nearest(name, PROFILES),
        )
    return PROFILES[name]
