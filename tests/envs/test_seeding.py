"""Seeds of episodes: distinct, reproducible, disjoint between training and evaluation."""

from __future__ import annotations

import numpy as np
from gymnasium.utils import seeding
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.envs.seeding import episode_generator, episode_seed

NUMBERS = st.integers(0, 2**31)


def test_seeds_of_slots_and_episodes_are_distinct() -> None:
    seeds = {
        episode_seed(run, slot, episode, stream=stream)
        for run in (0, 1)
        for slot in range(40)
        for episode in range(40)
        for stream in ("train", "evaluate")
    }
    assert len(seeds) == 2 * 40 * 40 * 2


def test_seeds_never_change_between_releases() -> None:
    assert episode_seed(0, 0, 0) == 15793235383387715774
    assert episode_seed(1, 2, 3) == 12997252459554536576
    assert episode_seed(1, 2, 3, stream="evaluate") == 3859358616364316163


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_no_training_seed_is_an_evaluation_seed(a, b, c, d, e, f) -> None:
    training, evaluation = episode_seed(a, b, c), episode_seed(d, e, f, stream="evaluate")
    assert training != evaluation
    assert 0 <= training < 2**64
    assert 0 <= evaluation < 2**64


@given(st.integers(0, 2**64 - 1))
def test_the_generator_is_gymnasiums(seed) -> None:
    theirs, _ = seeding.np_random(seed)
    np.testing.assert_array_equal(
        episode_generator(seed).standard_normal(4), theirs.standard_normal(4)
    )
