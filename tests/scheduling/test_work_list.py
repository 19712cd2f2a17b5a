"""Which episodes make up a batch: by number, whatever ends first and wherever it ran."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.errors import BadInput
from rlinf_async.scheduling.work_list import Episodes, Rounds, kept_groups


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_every_episode_belongs_to_one_cell(groups, size, cells):
    plan = Episodes(groups=groups, size=size, limit=3)
    parts = [plan.items(range(groups), cell, cells) for cell in range(cells)]
    assert sorted(item for part in parts for item in part) == list(range(groups * size))


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 7))
def test_a_row_is_long_enough_for_any_lengths_and_replacements(data, groups, size, slots, limit):
    plan = Episodes(groups=groups, size=size + 1, limit=limit, replacements=2)
    for cell in range(2):
        steps = 0
        for tried in ([*range(groups)], [groups], [groups + 1]):
            free = [0] * slots
            for _ in plan.items(tried, cell, 2):  # the first slot that is free takes the next
                began = heapq.heappop(free)
                heapq.heappush(free, began + data.draw(st.integers(1, limit)))
            steps += max(free)
        assert steps <= plan.horizon(2, slots)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=3), min_size=6, max_size=6),
    st.integers(0, 3),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_choice_does_not_depend_on_the_order_of_arrival(scores, budget, cells, order):
    plan = Episodes(groups=3, size=3, limit=5, replacements=budget)

    def run(shuffle: random.Random | None) -> dict[int, list[float]]:
        rounds, seen = Rounds(plan, cells), {}
        while rounds.groups:
            parts = {cell: rounds.items(cell) for cell in range(cells)}
            cells_in_order = list(parts)
            if shuffle is not None:
                shuffle.shuffle(cells_in_order)
            for cell in cells_in_order:
                rounds.ran({i: scores[i // 3][i % 3] for i in parts[cell]})
            seen |= {i // 3: scores[i // 3] for part in parts.values() for i in part}
        return seen

    tried = run(order)
    assert tried == run(None)
    kept = kept_groups(tried, plan)
    untied = [g for g in range(3 + budget) if len(set(scores[g])) > 1]
    assert kept == (untied[:3] if budget else [0, 1, 2])
    assert len(tried) <= 3 + budget
    if len(untied) >= 3 and budget:
        assert max(tried) == max(untied[2], 2), "no more are tried than it takes"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"groups": 0}, "groups"),
        ({"limit": 0}, "limit"),
        ({"size": 1, "replacements": 1}, "always ties"),
        ({"keep_share": 1.0}, "keep_share"),
        ({"keep_share": 0.5, "replacements": 1}, "is not known"),
    ],
)
def test_lists_that_cannot_be_are_refused(changes, what):
    with pytest.raises(BadInput, match=what):
        Episodes(**{"groups": 2, "size": 2, "limit": 5, **changes})
