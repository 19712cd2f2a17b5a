"""The period of a timed marked graph: its maximum cycle ratio.

Nodes are activities that repeat for ever, an edge says that one waits for another. An edge takes
`seconds` and holds `tokens`: with m tokens the n-th start of its target waits for the (n - m)-th
start of its source. In the long run every node of a strongly connected graph repeats once in

    max over cycles of (sum of seconds / sum of tokens)

(Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, theorem 2.35), found by
Howard's policy iteration (Cochet-Terrasson et al., "Numerical computation of spectral elements in
max-plus algebra", 1998).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import EngineError

_TOLERANCE = 1e-12
"""Relative gain below which a node keeps its edge, so that rounding cannot make it go round."""


class Deadlock(EngineError):
    """A cycle without tokens: its activities wait for each other for ever."""


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` starts `seconds` after `source` has started, `tokens` rounds before."""

    source: Hashable
    target: Hashable
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The period and a cycle that causes it."""

    seconds: float
    """Of one round; 0 for a graph without cycles."""
    cycle: tuple[Hashable, ...]
    """The nodes of a critical cycle, in order; empty for a graph without cycles."""


def period(edges: Iterable[Edge]) -> Period:
    """The maximum cycle ratio of a graph.

    Raises:
        Deadlock: some cycle holds no token.
    """
    out: dict[Hashable, list[Edge]] = {}
    for edge in edges:
        out.setdefault(edge.source, []).append(edge)
        out.setdefault(edge.target, [])
    _cut_dead_ends(out)
    _refuse_deadlock(out)
    if not out:
        return Period(seconds=0.0, cycle=())
    chosen = {node: max(leaving, key=lambda e: e.seconds) for node, leaving in out.items()}
    while True:
        ratio, potential, cycles = _evaluate(chosen)
        if not _improve(out, chosen, ratio, potential):
            best = max(cycles, key=lambda found: found[0])
            return Period(seconds=best[0], cycle=best[1])


def simple_cycles(edges: Sequence[Edge]) -> Iterator[tuple[Any, int]]:
    """Seconds and tokens of every simple cycle of a small graph, where seconds may be arrays.

    So a graph whose durations vary, but whose shape does not, is searched once:
    the period is the largest of the ratios.
    """
    order = {node: i for i, node in enumerate(dict.fromkeys(e.source for e in edges))}
    for start in order:
        yield from _cycles_from(edges, order, start, start, frozenset([start]), 0.0, 0)


def _cycles_from(
    edges: Sequence[Edge],
    order: dict[Hashable, int],
    start: Hashable,
    node: Hashable,
    seen: frozenset[Hashable],
    seconds: Any,
    tokens: int,
) -> Iterator[tuple[Any, int]]:
    """Cycles through `start` whose other nodes come behind it in the order; each is found once."""
    for edge in edges:
        if edge.source != node:
            continue
        total, held = seconds + edge.seconds, tokens + edge.tokens
        if edge.target == start:
            yield total, held
        elif edge.target not in seen and order.get(edge.target, -1) > order[start]:
            further = seen | {edge.target}
            yield from _cycles_from(edges, order, start, edge.target, further, total, held)


def _cut_dead_ends(out: dict[Hashable, list[Edge]]) -> None:
    """Drop nodes from which no cycle can be reached; each of the others keeps an edge."""
    while dead := {node for node, leaving in out.items() if not leaving}:
        for node in dead:
            del out[node]
        for node, leaving in out.items():
            out[node] = [edge for edge in leaving if edge.target not in dead]


def _refuse_deadlock(out: dict[Hashable, list[Edge]]) -> None:
    """Raise where the edges without tokens form a cycle."""
    waits: dict[Hashable, set[Hashable]] = {
        node: {edge.target for edge in leaving if edge.tokens == 0} for node, leaving in out.items()
    }
    while free := {node for node, on in waits.items() if not on & waits.keys()}:
        for node in free:
            del waits[node]
    if waits:
        names = ", ".join(sorted(map(str, waits)))
        raise Deadlock(f"a cycle without tokens among {names}: its members wait for each other")


Found = tuple[float, tuple[Hashable, ...]]


def _evaluate(
    chosen: dict[Hashable, Edge],
) -> tuple[dict[Hashable, float], dict[Hashable, float], list[Found]]:
    """Ratio and potential of each node when it follows its chosen edge, and the cycles met."""
    ratio: dict[Hashable, float] = {}
    potential: dict[Hashable, float] = {}
    cycles: list[Found] = []
    for start in chosen:
        path: list[Hashable] = []
        seen: dict[Hashable, int] = {}
        node = start
        while node not in ratio and node not in seen:
            seen[node] = len(path)
            path.append(node)
            node = chosen[node].target
        if node not in ratio:
            loop = path[seen[node] :]
            value = sum(chosen[n].seconds for n in loop) / sum(chosen[n].tokens for n in loop)
            cycles.append((value, tuple(loop)))
            ratio[node], potential[node] = value, 0.0
        for behind in reversed(path):
            if behind in ratio:
                continue
            edge = chosen[behind]
            value = ratio[edge.target]
            ratio[behind] = value
            potential[behind] = edge.seconds - value * edge.tokens + potential[edge.target]
    return ratio, potential, cycles


def _improve(
    out: dict[Hashable, list[Edge]],
    chosen: dict[Hashable, Edge],
    ratio: dict[Hashable, float],
    potential: dict[Hashable, float],
) -> bool:
    """Give nodes better edges: first such that lead to slower cycles, then to longer ways."""
    changed = False
    for node, leaving in out.items():
        best = max(leaving, key=lambda edge: ratio[edge.target])
        if ratio[best.target] > ratio[node] * (1.0 + _TOLERANCE):
            chosen[node], changed = best, True
    if changed:
        return True
    for node, leaving in out.items():
        for edge in leaving:
            if ratio[edge.target] < ratio[node] * (1.0 - _TOLERANCE):
                continue
            length = edge.seconds - ratio[node] * edge.tokens + potential[edge.target]
            if length > potential[node] + _TOLERANCE * (1.0 + abs(potential[node])):
                chosen[node], potential[node], changed = edge, length, True
    return changed
