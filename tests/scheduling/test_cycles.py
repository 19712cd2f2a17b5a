"""The period of a marked graph against brute force and against playing it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.scheduling.cycles import Deadlock, Edge, period

NODES = 8


@st.composite
def live_graphs(draw):
    """Strongly connected graphs whose edges without tokens lead from lower to higher numbers."""
    count = draw(st.integers(1, NODES))
    seconds = st.floats(0.0, 10.0, allow_nan=False)
    ring = [Edge(i, (i + 1) % count, draw(seconds), int(i + 1 == count)) for i in range(count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    more = [
        Edge(a, b, draw(seconds), draw(st.integers(0 if a < b else 1, 3)))
        for a, b in draw(st.lists(pairs, max_size=10))
    ]
    return count, ring + more


def brute_force(edges):
    """The largest ratio over all simple cycles, by walking every path."""
    best = 0.0

    def walk(start, node, seconds, tokens, seen):
        nonlocal best
        for edge in edges:
            if edge.source != node:
                continue
            if edge.target == start:
                best = max(best, (seconds + edge.seconds) / (tokens + edge.tokens))
            elif edge.target > start and edge.target not in seen:
                walk(
                    start,
                    edge.target,
                    seconds + edge.seconds,
                    tokens + edge.tokens,
                    seen | {edge.target},
                )

    for start in {edge.source for edge in edges}:
        walk(start, start, 0.0, 0, {start})
    return best


def played(count, edges, rounds):
    """Starts of node 0 when every node starts as early as its edges allow."""
    starts = []
    for n in range(rounds):
        row = [0.0] * count
        for node in range(count):  # edges without tokens point to higher numbers
            for edge in edges:
                if edge.target == node and n >= edge.tokens:
                    past = row if edge.tokens == 0 else starts[n - edge.tokens]
                    row[node] = max(row[node], past[edge.source] + edge.seconds)
        starts.append(row)
    return [row[0] for row in starts]


@settings(max_examples=200, deadline=None)
@given(live_graphs())
def test_period_is_the_largest_cycle_ratio(graph):
    _, edges = graph
    found = period(edges)
    assert found.seconds == pytest.approx(brute_force(edges), rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(live_graphs())
def test_period_is_the_time_of_a_round_when_the_graph_is_played(graph):
    count, edges = graph
    starts = played(count, edges, 400)
    assert (starts[399] - starts[199]) / 200 == pytest.approx(
        period(edges).seconds, rel=1e-2, abs=0.2
    )


@settings(max_examples=60, deadline=None)
@given(live_graphs())
def test_named_cycle_has_the_period(graph):
    _, edges = graph
    found = period(edges)
    ring = list(zip(found.cycle, (*found.cycle[1:], found.cycle[0]), strict=True))
    ratios = []
    for a, b in ring:
        assert any(edge.source == a and edge.target == b for edge in edges)
    # Parallel edges: the best choice between each pair must reach the period.
    sub = [edge for edge in edges if (edge.source, edge.target) in ring]
    ratios.append(brute_force(sub))
    assert max(ratios) == pytest.approx(found.seconds, rel=1e-9, abs=1e-9)


def test_two_stations_by_hand():
    # a takes 2 s, b takes 3 s, two jobs go round: b is never idle.
    edges = [Edge("a", "b", 2.0, 0), Edge("b", "a", 3.0, 2), Edge("a", "a", 2.0, 1)]
    edges.append(Edge("b", "b", 3.0, 1))
    assert period(edges).seconds == 3.0
    assert period(edges).cycle == ("b",)
    # With one job they take turns.
    assert period([Edge("a", "b", 2.0, 0), Edge("b", "a", 3.0, 1)]).seconds == 5.0


def test_graph_without_cycles_has_no_period():
    assert period([Edge("a", "b", 2.0, 0), Edge("b", "c", 2.0, 1)]).seconds == 0.0
    assert period([]).cycle == ()


def test_parallel_branches_overlap():
    # reward and reference both wait for rollout, train for both: the longer one counts, not the sum
    edges = [
        Edge("rollout", "reward", 4.0, 0),
        Edge("rollout", "reference", 4.0, 0),
        Edge("reward", "train", 1.0, 0),
        Edge("reference", "train", 3.0, 0),
        Edge("train", "rollout", 2.0, 1),
    ]
    assert period(edges).seconds == 9.0


def test_cycle_without_tokens_is_refused_by_name():
    with pytest.raises(Deadlock, match="among a, b"):
        period([Edge("a", "b", 1.0, 0), Edge("b", "a", 1.0, 0), Edge("b", "c", 1.0, 1)])
