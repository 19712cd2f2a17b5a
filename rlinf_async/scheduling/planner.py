"""Which plan makes iterations shortest: every way of sharing devices, and the best counts in each.

A way of sharing is a partition of the phases into groups, a kind of device for each and a depth.
Its graph has one shape whatever the counts, so its cycles are listed once and evaluated for many
counts together. Few devices are tried whole; of many a grid of counts is tried, and then ever finer
ones around the best. Every count that is not a divisor of anything is as good as another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.cycles import Period, period, simple_cycles
from rlinf_async.scheduling.plans import (
    COLLECTING,
    Flow,
    FlowCosts,
    Group,
    Plan,
    durations,
    graph,
    memory_bytes,
    with_counts,
)

DEPTHS = (1, 2, 4)
WHOLE = 4096
"""Combinations of counts up to which all are tried."""
GRID = 24
"""Counts of a group in a grid over many devices."""
LEAST_GAIN = 0.03
"""A plan is not changed for less."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan and what is predicted of it."""

    plan: Plan
    seconds: float
    """Of one iteration; infinite where it does not fit."""
    parts: Mapping[str, float]
    """Seconds of each activity."""
    bound_by: tuple[str, ...]
    """The activities of the cycle that causes the period."""
    memory_bytes: tuple[float, ...]
    """Of a device of each group at its fullest."""
    swaps: tuple[bool, ...]
    """Groups that offload one phase for another."""
    refused: str = ""
    """Why it cannot be used, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was chosen, why, and what else there was; `measured_s` is filled in later."""

    chosen: Candidate
    reason: str
    candidates: tuple[Candidate, ...]
    """Best first, the chosen one included; at most one for each way of sharing."""
    measured_s: float | None = None

    def with_measured(self, seconds: float) -> Decision:
        """The same decision, once its plan has run."""
        return replace(self, measured_s=seconds)


def choose(flow: Flow, costs: FlowCosts, devices: Mapping[str, int]) -> Decision:
    """The plan with the shortest predicted iteration on `devices` (kind -> count).

    Raises:
        BadInput: no plan fits, with the reason of the one that came closest.
    """
    found = sorted(candidates(flow, costs, devices), key=lambda each: each.seconds)
    if not found:
        kinds = sorted({kind for _, kind in costs.seconds})
        raise BadInput("plan", "no device fits any phase", expected=kinds, got=dict(devices))
    best = found[0]
    if best.refused:
        raise BadInput("plan", f"no plan fits; {best.plan.describe()}: {best.refused}")
    return Decision(chosen=best, reason=_reason(found), candidates=tuple(found))


def candidates(flow: Flow, costs: FlowCosts, devices: Mapping[str, int]) -> Iterator[Candidate]:
    """The best counts for every way of sharing."""
    for plan in sharings(flow, costs, devices):
        yield best_counts(plan, flow, costs, devices)


def sharings(flow: Flow, costs: FlowCosts, devices: Mapping[str, int]) -> Iterator[Plan]:
    """Every partition of the phases, with every choice of kinds and depth that makes a difference.

    Where environments and policy stand apart, the phases behind collecting may also run on the
    devices of both. The counts in these plans are 1 and mean nothing yet.
    """
    for parts in _sharings(flow):
        for kinds in itertools.product(*(_kinds(part, costs, devices) for part in parts)):
            taken = [kinds.count(kind) for kind in devices]
            if any(n > devices[kind] for n, kind in zip(taken, devices, strict=True)):
                continue
            groups = tuple(
                Group(phases=part, devices=1, kind=kind)
                for part, kind in zip(parts, kinds, strict=True)
            )
            apart = flow.renders and not any(set(COLLECTING) <= set(part) for part in parts)
            for depth in DEPTHS if apart else DEPTHS[:1]:
                if depth <= flow.slots:
                    yield Plan(groups=groups, depth=depth)


def best_counts(plan: Plan, flow: Flow, costs: FlowCosts, devices: Mapping[str, int]) -> Candidate:
    """The plan with the numbers of devices that make its iterations shortest."""
    grid, counts = _first_grid(plan, devices), np.empty((0, 0), np.int64)
    step = 0
    while True:
        counts = _combinations(grid, plan, devices)
        best = counts[int(np.argmin(_periods(plan, flow, costs, counts)))]
        finer = _around(best, grid)
        if finer == grid or step == 6:
            return evaluate(with_counts(plan, best.tolist()), flow, costs)
        grid, step = finer, step + 1


def evaluate(plan: Plan, flow: Flow, costs: FlowCosts) -> Candidate:
    """What is predicted of one plan with its counts."""
    counts = [group.devices for group in plan.groups]
    memory = memory_bytes(plan, flow, costs, counts)
    limits = [costs.capacity.get(group.kind, math.inf) for group in plan.groups]
    swaps = tuple(bool(whole > limit) for (whole, _), limit in zip(memory, limits, strict=True))
    fullest = tuple(
        float(largest if swap else whole)
        for (whole, largest), swap in zip(memory, swaps, strict=True)
    )
    seconds = {k: float(v) for k, v in durations(plan, flow, costs, counts).items()}
    found: Period = period(graph(plan, flow, costs, seconds, swaps))
    refused = ""
    for group, size, limit in zip(plan.groups, fullest, limits, strict=True):
        if size > limit:
            names = "+".join(group.phases)
            refused = f"{names} needs {size:,.0f} bytes of a {group.kind} device of {limit:,.0f}"
    return Candidate(
        plan=plan,
        seconds=math.inf if refused else found.seconds,
        parts=seconds,
        bound_by=tuple(map(str, found.cycle)),
        memory_bytes=fullest,
        swaps=swaps,
        refused=refused,
    )


def worth_switching(
    now_s: float, then_s: float, error_s: float, *, iterations_left: int, switch_s: float
) -> bool:
    """Whether a plan of `then_s` an iteration replaces one of `now_s` (`error_s`: of their gain).

    The gain must exceed 3 % and two standard errors, and repay the switch twice.
    """
    gain = now_s - then_s
    return gain > max(LEAST_GAIN * now_s, 2.0 * error_s) and gain * iterations_left > 2.0 * switch_s


def _periods(plan: Plan, flow: Flow, costs: FlowCosts, counts: Ints) -> npt.NDArray[np.float64]:
    """Seconds of an iteration for each row of `counts` [candidates, groups]."""
    columns = [counts[:, i] for i in range(counts.shape[1])]
    seconds = durations(plan, flow, costs, columns)
    swaps, fits = _fit(plan, flow, costs, counts)
    longest = np.zeros(len(counts))
    # One number for each set of groups that swap: sorting whole rows would take most of the time.
    codes = swaps @ (1 << np.arange(swaps.shape[1]))
    for code in np.flatnonzero(np.bincount(codes)):
        at = codes == code
        some = swaps[np.argmax(at)].tolist()
        edges = graph(plan, flow, costs, seconds, some)
        for total, tokens in simple_cycles(edges):
            ratio = np.broadcast_to(np.asarray(total) / tokens, len(counts))
            np.maximum(longest, ratio, out=longest, where=at)
    return np.where(fits, longest, np.inf)


def _fit(
    plan: Plan, flow: Flow, costs: FlowCosts, counts: Ints
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which groups must swap, and which rows fit into memory at all."""
    swaps = np.zeros(counts.shape, np.bool_)
    fits = np.ones(len(counts), np.bool_)
    if not costs.capacity:
        return swaps, fits
    columns = [counts[:, i] for i in range(counts.shape[1])]
    for at, (whole, largest) in enumerate(memory_bytes(plan, flow, costs, columns)):
        limit = costs.capacity.get(plan.groups[at].kind, math.inf)
        swaps[:, at] = whole > limit
        fits &= largest <= limit
    return swaps, fits


def _first_grid(plan: Plan, devices: Mapping[str, int]) -> list[list[int]]:
    most = [devices[group.kind] for group in plan.groups]
    if math.prod(most) <= WHOLE:
        return [list(range(1, count + 1)) for count in most]
    points = max(4, min(GRID, round((4 * WHOLE) ** (1.0 / len(most)))))
    return [_spaced(1, count, points) for count in most]


def _around(best: Ints, grid: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each group the counts between the best one's neighbours in the grid, ends included."""
    finer = []
    for count, points in zip(best.tolist(), grid, strict=True):
        # What is left over is filled in, so the best count may lie between two points.
        low = max((p for p in points if p < count), default=count)
        high = min((p for p in points if p > count), default=count)
        span = range(low, high + 1)
        finer.append(list(span) if len(span) <= len(points) else _spaced(low, high, 8, count))
    return finer


def _spaced(low: int, high: int, points: int, *also: int) -> list[int]:
    """About `points` counts from low to high, each the same factor above the one before."""
    return sorted({*np.geomspace(low, high, points).round().astype(int).tolist(), *also})


def _combinations(grid: Sequence[Sequence[int]], plan: Plan, devices: Mapping[str, int]) -> Ints:
    """Rows of counts [candidates, groups] within the devices; what is left over is filled in too.

    In every row of the grid one group of each kind may also take all that the others leave.
    """
    rows = np.array(list(itertools.product(*grid)), np.int64)
    kinds = [group.kind for group in plan.groups]
    stacked = [rows]
    for index, kind in enumerate(kinds):
        others = [i for i, k in enumerate(kinds) if k == kind and i != index]
        filled = rows.copy()
        filled[:, index] = devices[kind] - rows[:, others].sum(axis=1)
        stacked.append(filled)
    rows = np.concatenate(stacked)
    fits = (rows >= 1).all(axis=1)
    for kind in set(kinds):
        used = rows[:, [i for i, k in enumerate(kinds) if k == kind]].sum(axis=1)
        fits &= used <= devices[kind]
    kept: Ints = rows[fits]
    return kept


def _sharings(flow: Flow) -> Iterator[tuple[tuple[str, ...], ...]]:
    yield from _partitions(flow.phases)
    if flow.renders:
        behind = tuple(phase for phase in flow.phases if phase not in COLLECTING)
        yield tuple((phase, *behind) for phase in COLLECTING)


def _partitions(phases: Sequence[str]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to put the phases into groups, each group in the order of the phases."""
    if not phases:
        yield ()
        return
    first, *rest = phases
    for parts in _partitions(rest):
        yield ((first,), *parts)
        for index, part in enumerate(parts):
            yield (*parts[:index], (first, *part), *parts[index + 1 :])


def _kinds(part: Sequence[str], costs: FlowCosts, devices: Mapping[str, int]) -> list[str]:
    """Kinds of device that all phases of a group can run on."""
    return [kind for kind in devices if all((phase, kind) in costs.seconds for phase in part)]


def _reason(found: Sequence[Candidate]) -> str:
    best, *others = found
    usable = [each for each in others if not each.refused]
    bound = f"{best.seconds:.4g} s an iteration, bound by {' and '.join(best.bound_by)}"
    if not usable:
        return f"{bound}; nothing else fits"
    gain = usable[0].seconds / best.seconds - 1.0
    return f"{bound}; next is {usable[0].plan.describe()}, {gain:.1%} slower"
