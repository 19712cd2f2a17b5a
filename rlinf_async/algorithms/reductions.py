"""How the terms of entries become one number: as a weight of each entry, known before any gradient.

Axes: N entries of an optimizer step, over all its micro-batches and ranks. The loss is the sum of
weight times term, so it does not depend on how the entries are cut into parts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import BadInput

Reduction = Literal["mean", "sequence_mean", "fixed"]


def reduction_weights(
    reduction: Reduction,
    valid_N: npt.NDArray[np.bool_],
    episode_N: npt.NDArray[np.int64],
    *,
    episode_entries: dict[int, int] | None = None,
    length_limit: int | None = None,
) -> npt.NDArray[np.float32]:
    """The weight [N] float32 of each entry of an optimizer step; 0 where it is not valid.

        mean            1 / (valid entries)                          DAPO's mean over tokens
        sequence_mean   1 / (S n_i), n_i the episode's valid entries GRPO
        fixed           1 / (S length_limit)                         Dr.GRPO

    S is the number of episodes that have a valid entry in the step.

    Args:
        episode_N: the episode that each entry is of.
        episode_entries: n_i of whole episodes, where the step holds parts of them only.
    """
    weight = np.zeros(len(valid_N), dtype=np.float64)
    episodes, position, count = np.unique(
        episode_N[valid_N], return_inverse=True, return_counts=True
    )
    if not len(episodes):
        return weight.astype(np.float32)
    if reduction == "mean":
        weight[valid_N] = 1.0 / valid_N.sum()
    elif reduction == "sequence_mean":
        if episode_entries is not None:
            count = np.array([episode_entries[int(episode)] for episode in episodes])
        weight[valid_N] = 1.0 / (len(episodes) * count[position])
    elif reduction == "fixed" and length_limit:
        weight[valid_N] = 1.0 / (len(episodes) * length_limit)
    else:
        raise BadInput("reduction", f"{reduction!r} with length_limit={length_limit}")
    return weight.astype(np.float32)
