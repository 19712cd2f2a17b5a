"""A discrete-event simulation of plans: the real ledger and leases, simulated devices.

Time is a number and nothing sleeps, so a cluster of any size is simulated on a laptop, and the same
seed gives the same run. Durations are the costs' times a random factor with mean 1. A call that
occupies several devices ends with the slowest of them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from rlinf_async.scheduling.leases import Lease, LeaseTable
from rlinf_async.scheduling.ledger import Ledger, Ticket
from rlinf_async.scheduling.planner import Candidate
from rlinf_async.scheduling.plans import (
    COLLECT,
    COLLECTING,
    PUBLISH,
    Flow,
    FlowCosts,
    Plan,
    crosses,
)

Then = Callable[[], None]
_NORMAL = NormalDist()


class Events:
    """What happens when, in order of time and then of arrival."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Then]] = []
        self._number = itertools.count()

    def after(self, seconds: float, then: Then) -> None:
        """Let `then` happen in `seconds`."""
        heapq.heappush(self._queue, (self.now_s + seconds, next(self._number), then))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._queue:
            self.now_s, _, then = heapq.heappop(self._queue)
            then()


class Noise:
    """Log-normal factors with mean 1 and a coefficient of variation for each activity."""

    def __init__(self, variation: Mapping[str, float], seed: int) -> None:
        self._variation = variation
        self._rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, 4))))

    def factor(self, activity: str, devices: int) -> float:
        """Of the slowest of `devices` devices that share a call."""
        spread = self._variation.get(activity, 0.0)
        if spread == 0.0:
            return 1.0
        sigma = math.sqrt(math.log1p(spread * spread))
        # The largest of d uniforms is one uniform's d-th root.
        uniform = float(self._rng.random()) ** (1.0 / devices)
        return math.exp(sigma * _NORMAL.inv_cdf(min(uniform, 1.0 - 1e-12)) - sigma * sigma / 2)


class Station:
    """One phase on its devices: calls wait in line, and run under a lease of the phase."""

    def __init__(self, events: Events, table: Turns, phase: str) -> None:
        self._events, self._turns, self._phase = events, table, phase
        self._line: deque[tuple[float, Then]] = deque()
        self._busy = False
        self.worked_s = 0.0

    def serve(self, seconds: float, then: Then) -> None:
        """Work for `seconds` as soon as it is this call's turn, and go on with `then`."""
        self._line.append((seconds, then))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._line:
            return
        self._busy = True
        self._turns.ask(self._phase, self._start)

    def _start(self, lease: Lease, swap_s: float) -> None:
        seconds, then = self._line.popleft()
        self.worked_s += seconds

        def finish() -> None:
            self._busy = False
            self._turns.give(lease)
            then()
            self._next()

        self._events.after(seconds + swap_s, finish)


class Turns:
    """The lease table in simulated time, and the price of bringing a phase onto its devices."""

    def __init__(self, plan: Plan, swap_s: Mapping[str, float]) -> None:
        """`swap_s`: phase -> seconds to bring it in; environments and policy come as one."""
        phases = {phase for group in plan.groups for phase in group.phases}
        self._homes = {phase: plan.homes(phase) for phase in sorted(phases)}
        self._table = LeaseTable(self._homes)
        self._swap_s = swap_s
        self._resident: dict[int, str] = {}
        self._waiting: dict[int, Callable[[Lease, float], None]] = {}
        self.switches = 0

    def ask(self, phase: str, start: Callable[[Lease, float], None]) -> None:
        """Call `start(lease, seconds of the switch)` once the devices are the phase's."""
        lease = self._table.request(phase)
        self._waiting[lease.number] = start
        if self._table.is_held(lease):
            self._begin(lease)

    def give(self, lease: Lease) -> None:
        """Return the devices; whoever is next begins."""
        for granted in self._table.release(lease):
            self._begin(granted)

    def _begin(self, lease: Lease) -> None:
        moved = False
        for home in self._homes[lease.phase]:
            before, now = self._resident.get(home), _turn(lease.phase)
            self._resident[home] = now
            moved |= before is not None and before != now
        self.switches += moved
        self._waiting.pop(lease.number)(lease, self._swap_s.get(lease.phase, 0.0) if moved else 0.0)


def _turn(phase: str) -> str:
    """What is resident together: the calls of environments and policy alternate."""
    return COLLECT if phase in COLLECTING else phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a simulated run showed."""

    seconds: float
    """Of an iteration, over all but the first few."""
    busy: Mapping[str, float]
    """Phase -> share of the time that its devices worked for it."""
    switches: int
    messages_per_s: float
    """That the controller would handle: one there and back for each segment, and each receiver."""


@dataclass(slots=True)
class _Progress:
    collected: dict[int, int] = field(default_factory=dict)
    finished: dict[int, set[str]] = field(default_factory=dict)
    live_s: list[float] = field(default_factory=list)


class SimulatedRun:
    """One plan played for some iterations."""

    def __init__(
        self,
        candidate: Candidate,
        flow: Flow,
        costs: FlowCosts,
        *,
        iterations: int,
        variation: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        plan = candidate.plan
        self._plan, self._flow, self._costs = plan, flow, costs
        self._events, self._noise = Events(), Noise(variation or {}, seed)
        swapping = {
            phase
            for group, swaps in zip(plan.groups, candidate.swaps, strict=True)
            if swaps
            for phase in group.phases
        }
        self._turns = Turns(plan, {p: costs.switch.get(_turn(p), 0.0) for p in swapping})
        self._stations = {p: Station(self._events, self._turns, p) for p in flow.phases}
        self._ledger = Ledger(cells=plan.depth, iterations=iterations, max_lag=flow.max_lag)
        self._call = math.ceil(flow.slots / plan.depth)
        self._progress = _Progress()

    def run(self, *, skip: int = 2) -> Outcome:
        """Play it; the first `skip` iterations fill the pipe and do not count."""
        self._admit()
        self._events.run()
        live_s = self._progress.live_s
        assert self._ledger.finished, "the simulated run came to a halt"
        seconds = (live_s[-1] - live_s[skip]) / (len(live_s) - 1 - skip)
        receivers = self._plan.devices_of("rollout")
        return Outcome(
            seconds=seconds,
            busy={p: s.worked_s / self._events.now_s for p, s in self._stations.items()},
            switches=self._turns.switches,
            messages_per_s=2 * (self._plan.depth + receivers + len(self._flow.after)) / seconds,
        )

    def _admit(self) -> None:
        for cell in range(self._plan.depth):
            if not self._ledger.blocked_by(cell):
                self._step(self._ledger.admit(cell), 0)

    def _step(self, ticket: Ticket, t: int) -> None:
        """Chunk-step t of a cell: its environments, then its policy."""
        if t == self._flow.horizon:
            self._collected(ticket)
        elif self._flow.renders:
            self._serve("render", self._call, lambda: self._act(ticket, t))
        else:
            self._act(ticket, t)

    def _act(self, ticket: Ticket, t: int) -> None:
        self._serve("rollout", self._call, lambda: self._step(ticket, t + 1))

    def _collected(self, ticket: Ticket) -> None:
        self._ledger.collected(ticket)
        done = self._progress.collected.get(ticket.batch, 0) + 1
        self._progress.collected[ticket.batch] = done
        if done == self._plan.depth:
            self._finished(ticket.batch, COLLECT)
        self._admit()

    def _finished(self, batch: int, activity: str) -> None:
        """Begin the phases that waited for `activity` of a batch last."""
        finished = self._progress.finished.setdefault(batch, set())
        finished.add(activity)
        for phase, waits in self._flow.after.items():
            if activity in waits and finished.issuperset(waits):
                self._events.after(self._transfer(waits, phase), self._starter(batch, phase))

    def _starter(self, batch: int, phase: str) -> Then:
        def start() -> None:
            then = self._trained if phase == "train" else self._finished
            arguments = (batch,) if phase == "train" else (batch, phase)
            self._serve(phase, self._flow.units_of(phase), lambda: then(*arguments))

        return start

    def _transfer(self, waits: tuple[str, ...], phase: str) -> float:
        travels = any(crosses(self._plan, source, phase) for source in waits)
        return self._costs.link(self._costs.batch_bytes) if travels else 0.0

    def _trained(self, batch: int) -> None:
        self._ledger.trained(batch)
        seconds = self._costs.publish(self._plan.devices_of("rollout"))
        self._events.after(seconds * self._noise.factor(PUBLISH, 1), lambda: self._publish(batch))

    def _publish(self, batch: int) -> None:
        self._ledger.published(batch + 1)
        self._progress.live_s.append(self._events.now_s)
        self._progress.finished.pop(batch, None)
        self._progress.collected.pop(batch, None)
        self._admit()

    def _serve(self, phase: str, units: int, then: Then) -> None:
        kind = self._plan.groups[self._plan.homes(phase)[0]].kind
        devices = self._plan.devices_of(phase)
        seconds = float(self._costs.seconds[phase, kind](units, devices))
        self._stations[phase].serve(seconds * self._noise.factor(phase, devices), then)
