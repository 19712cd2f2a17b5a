"""Plans: which phases share which devices, and how long an iteration then takes.

Axes of the arithmetic: every count of devices may be a number or an array of candidates.

An iteration collects a batch (`render` and `rollout` together, or `rollout` alone), passes it
through the other phases in the order of their dependencies, and publishes. Collecting is a loop of
its own: T chunk-steps, each of K calls of N / K slots to environments and policy. Where the two
have their own devices, K > 1 lets them work at once; on shared ones it cannot.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.costs import Linear
from rlinf_async.scheduling.cycles import Edge

COLLECTING = ("render", "rollout")
COLLECT, PUBLISH = "collect", "publish"

FREE = Linear()

Counts = Any
"""Devices: an int, or an array of ints of one shape for all groups."""
Seconds = Callable[[int, Counts], Any]
"""(units, devices) -> seconds; must accept arrays of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The logical flow and its sizes; nothing here is ever planned."""

    slots: int
    """N, environments (or sequences) in all."""
    horizon: int
    """T, chunk-steps of a batch."""
    max_lag: int = 0
    """k."""
    after: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"train": (COLLECT,)})
    """Phases behind collecting -> what each waits for; `train` is the last."""
    units: Mapping[str, int] = field(default_factory=dict)
    """Units of work of those phases in an iteration; by default N * T."""
    renders: bool = True
    """Whether there are environments; language models that only generate have none."""

    def __post_init__(self) -> None:
        if "train" not in self.after:
            raise BadInput("flow", "no phase 'train'", got=sorted(self.after))
        known = {COLLECT, *self.after}
        for phase, waits in self.after.items():
            if missing := set(waits) - known:
                raise BadInput("flow", f"{phase} waits for unknown {sorted(missing)}")

    @property
    def phases(self) -> tuple[str, ...]:
        """All that need devices, in an order that respects the dependencies."""
        collecting = COLLECTING if self.renders else COLLECTING[1:]
        ordered: list[str] = []
        left = dict(self.after)
        while left:
            ready = [p for p, waits in left.items() if not set(waits) & left.keys()]
            if not ready:
                raise BadInput("flow", f"phases wait for each other: {sorted(left)}")
            ordered += ready
            left = {p: waits for p, waits in left.items() if p not in ready}
        return (*collecting, *ordered)

    def units_of(self, phase: str) -> int:
        """Units of a phase behind collecting."""
        return self.units.get(phase, self.slots * self.horizon)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCosts:
    """Costs of a flow's phases on the devices at hand."""

    seconds: Mapping[tuple[str, str], Seconds]
    """(phase, kind of device) -> seconds of one call; a phase cannot run on kinds left out. For
    `render` and `rollout` a call is one chunk-step."""
    publish: Linear = FREE
    """Seconds to publish, by the devices that receive weights."""
    switch: Mapping[str, float] = field(default_factory=dict)
    """Phase -> seconds to bring it onto devices that another phase has left (offload, onload)."""
    link: Linear = FREE
    """Seconds of a transfer between groups, by bytes."""
    batch_bytes: int = 0
    """Bytes of a batch that cross from one group to another."""
    memory: Mapping[str, Linear] = field(default_factory=dict)
    """Phase -> bytes on a device, by the units that this device handles."""
    capacity: Mapping[str, float] = field(default_factory=dict)
    """Kind -> bytes of one device; unlimited where left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Devices of one kind, and the phases that take turns on them."""

    phases: tuple[str, ...]
    devices: int
    kind: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Groups without common devices, and how many calls of a cell are in flight.

    A phase that stands in several groups, all of one kind, runs on the devices of all of them.
    """

    groups: tuple[Group, ...]
    depth: int = 1
    """K."""

    def homes(self, phase: str) -> tuple[int, ...]:
        """Numbers of the groups that a phase runs on."""
        return tuple(i for i, group in enumerate(self.groups) if phase in group.phases)

    def devices_of(self, phase: str) -> int:
        """All devices that a phase runs on."""
        return sum(self.groups[i].devices for i in self.homes(phase))

    @property
    def mode(self) -> str:
        """`collocated`, `disaggregated`, or `hybrid` for mixes."""
        if len(self.groups) == 1:
            return "collocated"
        alone = all(len(group.phases) == 1 for group in self.groups)
        return "disaggregated" if alone else "hybrid"

    def describe(self) -> str:
        """One line, such as `hybrid K=2: render+train 6 gpu, rollout 2 gpu`."""
        parts = [f"{'+'.join(g.phases)} {g.devices} {g.kind}" for g in self.groups]
        return f"{self.mode} K={self.depth}: {', '.join(parts)}"


def durations(plan: Plan, flow: Flow, costs: FlowCosts, counts: Sequence[Counts]) -> dict[str, Any]:
    """Seconds of each activity of an iteration, with `counts` devices in the plan's groups."""
    at = {phase: plan.homes(phase) for phase in flow.phases}

    def devices(phase: str) -> Counts:
        return sum(counts[i] for i in at[phase])

    def seconds(phase: str, units: int) -> Any:
        kind = plan.groups[at[phase][0]].kind
        return costs.seconds[phase, kind](units, devices(phase))

    call = math.ceil(flow.slots / plan.depth)
    policy = seconds("rollout", call)
    collect = plan.depth * policy
    if flow.renders:
        render = seconds("render", call)
        if at["render"] == at["rollout"] or plan.depth == 1:
            collect = plan.depth * (render + policy)
        else:
            collect = np.maximum(plan.depth * np.maximum(render, policy), render + policy)
            # Whoever is not the bottleneck fills the pipe once.
            collect = collect + np.minimum(render, policy) / flow.horizon
    found = {COLLECT: flow.horizon * collect}
    for phase in flow.after:
        found[phase] = seconds(phase, flow.units_of(phase))
    found[PUBLISH] = costs.publish(devices("rollout"))
    return found


def activities(group: Group, flow: Flow) -> tuple[str, ...]:
    """What a group does in an iteration, in order: collecting counts once."""
    collects = any(phase in COLLECTING for phase in group.phases)
    behind = tuple(phase for phase in flow.phases if phase in group.phases and phase in flow.after)
    return ((COLLECT,) if collects else ()) + behind


def graph(
    plan: Plan, flow: Flow, costs: FlowCosts, seconds: Mapping[str, Any], swaps: Sequence[bool]
) -> list[Edge]:
    """The iteration as a timed marked graph; `swaps`: groups whose phases do not fit together.

    Durations stand on the edges that leave an activity.
    """
    edges = [
        Edge("train", PUBLISH, seconds["train"], 0),
        Edge(PUBLISH, COLLECT, seconds[PUBLISH], flow.max_lag + 1),
        # A version is trained only when the one before is live: once per batch.
        Edge(PUBLISH, "train", seconds[PUBLISH], 1),
    ]
    for phase, waits in flow.after.items():
        for source in waits:
            transfer = costs.link(costs.batch_bytes) if crosses(plan, source, phase) else 0.0
            edges.append(Edge(source, phase, seconds[source] + transfer, 0))
    for group, swap in zip(plan.groups, swaps, strict=True):
        turns = activities(group, flow)
        for index, turn in enumerate(turns):
            following = turns[(index + 1) % len(turns)]
            enter = costs.switch.get(following, 0.0) if swap and len(turns) > 1 else 0.0
            last = index + 1 == len(turns)
            edges.append(Edge(turn, following, seconds[turn] + enter, 1 if last else 0))
    return edges


def crosses(plan: Plan, source: str, target: str) -> bool:
    """Whether what one phase makes must travel to devices of another group."""
    made_at = "rollout" if source == COLLECT else source
    return not set(plan.homes(made_at)) & set(plan.homes(target))


def memory_bytes(
    plan: Plan, flow: Flow, costs: FlowCosts, counts: Sequence[Counts]
) -> list[tuple[Any, Any]]:
    """For each group, bytes of a device with all its phases resident, and with the largest alone.

    Environments and policy alternate with every chunk-step, so they count as one. The k + 1 batches
    that may wait lie where they are trained on.
    """
    call = math.ceil(flow.slots / plan.depth)
    found = []
    for group in plan.groups:
        sizes: dict[str, Any] = {}
        for phase in group.phases:
            devices = sum(counts[i] for i in plan.homes(phase))
            collects = phase in COLLECTING
            units = np.ceil((call if collects else flow.units_of(phase)) / np.asarray(devices))
            turn = COLLECT if collects else phase
            sizes[turn] = sizes.get(turn, 0.0) + costs.memory.get(phase, FREE)(units)
        waiting: Any = 0.0
        if "train" in group.phases:
            devices = sum(counts[i] for i in plan.homes("train"))
            waiting = (flow.max_lag + 1) * costs.batch_bytes / devices
        alone = list(sizes.values())
        found.append(
            (sum(alone) + waiting, np.maximum.reduce(np.broadcast_arrays(*alone)) + waiting)
        )
    return found


def with_counts(plan: Plan, counts: Sequence[int]) -> Plan:
    """The same plan with other numbers of devices."""
    groups = tuple(
        dataclasses.replace(group, devices=int(devices))
        for group, devices in zip(plan.groups, counts, strict=True)
    )
    return dataclasses.replace(plan, groups=groups)
