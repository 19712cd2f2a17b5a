"""A torch policy without gradient: what batches are prepared with and references compared by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rlinf_async.models.modules import policy_calls

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


class ModuleEvaluator:
    """A module's log-probs and values without gradient, in calls of at most `rows` rows."""

    def __init__(self, module: nn.Module, *, rows: int) -> None:
        self._module, self._rows = policy_calls(module), rows

    def logp(
        self, observations: Mapping[str, Array], action: Array, executed: Array | None = None
    ) -> Float32:
        """Log-probs [M] of `action`."""
        result = np.empty(len(action), dtype=np.float32)
        with torch.no_grad():
            for at in self._slices(len(action)):
                part = {name: torch.from_numpy(rows[at]) for name, rows in observations.items()}
                mask = [] if executed is None else [torch.from_numpy(executed[at])]
                logp, _, _ = self._module.evaluate(part, torch.from_numpy(action[at]), *mask)
                result[at] = logp.numpy()
        return result

    def value(self, observations: Mapping[str, Array]) -> Float32:
        """Values [M]."""
        result = np.empty(len(next(iter(observations.values()))), dtype=np.float32)
        with torch.no_grad():
            for at in self._slices(len(result)):
                part = {name: torch.from_numpy(rows[at]) for name, rows in observations.items()}
                result[at] = self._module.value(part).numpy()
        return result

    def _slices(self, count: int) -> list[slice]:
        return [slice(start, start + self._rows) for start in range(0, count, self._rows)]
