"""Generated spaces: what is stored is the same wherever the environments are stepped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.envs.registry import make_cell
from rlinf_async.execution.references import describe
from tests.envs.test_contract_autoreset import SLOTS, actions_for, collected, obvious, seed_of
from tests.fixtures.generated_spaces import random_row, space_trees
from tests.fixtures.plain_spaces import plain, space_of, wandering, wandering_env

STEPS = 10
CASES = (
    space_trees(for_actions=False),
    space_trees(for_actions=True),
    st.integers(0, 2**31),
    st.booleans(),
)


def cell_of(obs: Any, act: Any, backend: str) -> Any:
    request = {"env": describe(wandering(obs, act), where="test"), "backend": backend}
    return make_cell(request, SLOTS, first_slot=10)


def check(backends: tuple[str, ...], obs: Any, act: Any, seed: int, retiring: bool) -> None:
    """Steps against the obvious loop, then chunks against those of the loop."""

    def seeds(slot: int, episode: int) -> int | None:
        return None if retiring and episode > 1 + slot else seed + seed_of(slot, episode)

    rows = actions_for(act, STEPS, seed)
    expected = obvious(lambda: wandering_env(plain(obs), plain(act)), rows, seeds)
    chunks = None
    for backend in backends:
        cell = cell_of(obs, act, backend)
        try:
            assert collected(cell, rows, seeds) == expected, backend
            found = chunked(cell, seed)
        finally:
            cell.close()
        assert found == (chunks := chunks or found), backend


def chunked(cell: Any, seed: int) -> list[Any]:
    """What a few chunks store."""
    ended = [0] * SLOTS

    def next_seed(slot: int) -> int:
        ended[slot] += 1
        return seed + seed_of(slot, ended[slot])

    kept = [bits(cell.reset([seed + seed_of(slot, 0) for slot in range(SLOTS)]))]
    for t in range(4):
        rows = [random_row(cell.spaces.action, SLOTS, seed + 3 * t + i) for i in range(3)]
        found = cell.chunk_step(np.stack(rows, axis=1), next_seed)
        kept += [bits(found.observation), bits(found.final_observation or {})]
        for name in ("reward", "executed", "terminated", "truncated", "finished"):
            kept.append(getattr(found, name).tolist())
    return kept


def bits(observation: dict[str, Any]) -> dict[str, bytes]:
    return {name: rows.tobytes() for name, rows in observation.items()}


@given(space_trees(for_actions=False))
@settings(max_examples=100, deadline=None)
def test_a_space_in_plain_values_is_that_space(space: Any) -> None:
    assert space_of(plain(space)) == space


@given(*CASES)
@settings(max_examples=25, deadline=None)
def test_loop_and_threads_store_the_same(obs: Any, act: Any, seed: int, retiring: bool) -> None:
    check(("loop", "threads"), obs, act, seed, retiring)


# Each example starts two processes.
@given(*CASES)
@settings(max_examples=4, deadline=None)
def test_processes_store_the_same_as_the_loop(
    obs: Any, act: Any, seed: int, retiring: bool
) -> None:
    check(("loop", "processes"), obs, act, seed, retiring)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(*CASES)
@settings(max_examples=60, deadline=None)
def test_all_back_ends_store_the_same(obs: Any, act: Any, seed: int, retiring: bool) -> None:
    check(("loop", "threads", "processes"), obs, act, seed, retiring)
