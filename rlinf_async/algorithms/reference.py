"""The policy that a run began with, as what the present one is kept near to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.batching import Evaluator
from rlinf_async.errors import BadInput

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

REFERENCE = "reference/parameters"


class Reference:
    """Holds the first parameters where a loss has `kl_weight`, and nothing where it has none."""

    def __init__(self, loss: Any, *, normalize: bool) -> None:
        """BadInput where the policy's view of an observation changes while it learns."""
        self.wanted = getattr(loss, "kl", None) is not None
        self._parameters: Float32 | None = None
        if self.wanted and normalize:
            raise BadInput(
                type(loss).__name__,
                "kl_weight compares with the first version, whose statistics are others",
                fix="use run.policy(..., normalize_observations=False)",
            )

    def begin_at(self, parameters: Float32) -> None:
        """The policy at the start of the run; later calls change nothing."""
        if self.wanted and self._parameters is None:
            self._parameters = parameters.copy()

    def logp(
        self,
        evaluator: Evaluator,
        live: Float32,
        observations: Mapping[str, Array],
        action: Array,
        executed: Array | None,
    ) -> Float32:
        """Log-probs [N] of the stored actions; `live` [P] is what `evaluator` computes with."""
        assert self._parameters is not None, "no reference before load()"
        present = live.copy()
        np.copyto(live, self._parameters)
        try:
            return evaluator.logp(observations, action, executed)
        finally:
            np.copyto(live, present)

    def state(self) -> dict[str, Array]:
        """The parameters [P], for a checkpoint."""
        return {} if self._parameters is None else {REFERENCE: self._parameters.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        if self.wanted:
            self._parameters = np.array(state[REFERENCE], dtype=np.float32)
