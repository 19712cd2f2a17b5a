"""Integer observations say which values they take, so that policies can embed them."""

import numpy as np
from gymnasium import spaces

from rlinf_async.envs.gymnasium_spaces import observation_leaves


def test_counts_and_starts_of_integer_spaces_are_declared():
    space = spaces.Dict(
        {
            "bits": spaces.MultiBinary((2, 2)),
            "box": spaces.Box(0, 9, (2,), np.int64),
            "one": spaces.Discrete(5, start=-2),
            "table": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, -1]]),
        }
    )
    found = {leaf.spec.name: leaf.spec for leaf in observation_leaves(space, who="test")}
    ranges = {name: (spec.counts, spec.starts) for name, spec in found.items()}
    assert ranges == {
        "bits": ((2, 2, 2, 2), ()),
        "box": ((), ()),
        "one": ((5,), (-2,)),
        "table": ((2, 3, 4, 5), (0, 1, 0, -1)),
    }
