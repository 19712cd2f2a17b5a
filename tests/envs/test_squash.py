"""From u before the tanh to actions within the bounds."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_async.envs.squash import SquashedActions
from rlinf_async.execution.spaces import ActionPart, ActionSpec

BOX = ActionSpec(kind="continuous", shape=(2,), dtype="float64", low=(-2.0, 0.0), high=(2.0, 10.0))
MIXED = ActionSpec(
    kind="mixed",
    shape=(4,),
    dtype="float32",
    parts=(
        ActionPart(name="grip", spec=ActionSpec(kind="discrete", shape=(), dtype="int64", count=9)),
        ActionPart(name="arm", spec=BOX),
        ActionPart(name="lamp", spec=ActionSpec(kind="multi_binary", shape=(1,), dtype="int8")),
    ),
)


def test_the_tanh_is_stretched_to_the_bounds_of_each_component():
    u = np.array([[0.0, 0.0], [np.arctanh(0.5), np.arctanh(-0.5)], [30.0, -30.0]], np.float32)
    before = u.copy()
    squashed = SquashedActions(BOX)(u)
    np.testing.assert_allclose(squashed, [[0.0, 5.0], [1.0, 2.5], [2.0, 0.0]], atol=1e-6)
    assert squashed.dtype == np.float32
    np.testing.assert_array_equal(u, before)


def test_every_action_of_a_chunk_is_stretched_alike():
    u = np.random.default_rng(0).normal(0, 2, (3, 4, 2)).astype(np.float32)
    chunks = SquashedActions(BOX)(u)
    for c in range(4):
        np.testing.assert_array_equal(chunks[:, c], SquashedActions(BOX)(u[:, c]))


@pytest.mark.parametrize("lead", [(3,), (3, 2)])
def test_choices_and_bits_of_a_mixed_action_stay_as_they_are(lead):
    u = np.full((*lead, 4), (7.0, 30.0, -30.0, 1.0), np.float32)
    np.testing.assert_allclose(SquashedActions(MIXED)(u), np.full((*lead, 4), (7, 2, 0, 1)))
