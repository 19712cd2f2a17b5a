"""The torch learner for policies that remember: mini-batches of whole sequences.

Axes: T time, B slots, b slots of a mini-batch. A unit is what one slot did over the segment. Its
memory at the segment's start is what acting stored; everything behind it is computed anew, with
gradients through time and zeros where an episode begins. Arrays of a mini-batch are [b, T, ...],
`memory/<name>` is [b, *shape], and `first` [b, T] marks the first entry of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rlinf_async.algorithms.batching import Prepared
from rlinf_async.algorithms.torch_learner import Minibatch, TorchLearner, observation_of
from rlinf_async.errors import BadInput
from rlinf_async.models.modules import RecurrentPolicyModule

Array = npt.NDArray[Any]

MEMORY = "memory/"


class RecurrentLearner(TorchLearner):
    """Trains a policy with `state_shape`; see the module."""

    def _entries(self, prepared: Prepared, batch: Mapping[str, Array]) -> dict[str, Array]:
        horizon, slots = batch["logp"].shape
        self._check_minibatch(horizon, slots)
        entries = {
            name: np.ascontiguousarray(rows.reshape(horizon, slots, *rows.shape[1:]).swapaxes(0, 1))
            for name, rows in super()._entries(prepared, batch).items()
        }
        ended_TB = batch["terminated"] | batch["truncated"]
        first_BT = np.zeros((slots, horizon), np.bool_)
        # Acting stores a memory of zeros where the segment itself begins with an episode.
        first_BT[:, 1:] = ended_TB[:-1].T
        entries["first"] = first_BT
        for name in self._module.state_shape:
            entries[MEMORY + name] = batch[MEMORY + name][0]
        return entries

    def _evaluate(self, part: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
        observation = {n: rows.swapaxes(0, 1) for n, rows in observation_of(part).items()}
        memory = {name: part[MEMORY + name] for name in self._module.state_shape}
        executed = part["executed"].T if "executed" in part else None
        found = self._module.evaluate_sequence(
            observation, part["action"].swapaxes(0, 1), memory, part["first"].T, executed
        )
        logp, entropy, value = (each.T.reshape(-1) for each in found)
        return logp, entropy, value

    def _columns(self, part: Minibatch) -> Minibatch:
        """Entries of one slot stand together."""
        return {name: rows.reshape(-1) for name, rows in part.items() if rows.ndim == 2}

    def _check_minibatch(self, horizon: int, slots: int) -> None:
        if self._minibatch % horizon:
            near = max(1, round(self._minibatch / horizon)) * horizon
            raise BadInput(
                "pipe.train",
                "a policy that remembers is trained on whole sequences",
                expected=f"a minibatch that is a multiple of the horizon {horizon}",
                got=self._minibatch,
                fix=f"use minibatch={min(near, horizon * slots)}",
            )

    @property
    def _module(self) -> RecurrentPolicyModule:
        return cast("RecurrentPolicyModule", self.module)
