"""What the updates of all off-policy algorithms share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlinf_async.algorithms.off_policy.networks import Flat, Trained
from rlinf_async.algorithms.optimizers import Adam

Array = npt.NDArray[Any]
Rows = Mapping[str, Tensor]
"""N transitions: obs and next [N, D], action [N, A] in [-1, 1], reward and discount [N], and
weight [N] where sampling is not uniform."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """What an update is built from, and where it notes its metrics."""

    actor: Flat
    actor_layers: int
    observations: int
    actions: int
    half_range: Tensor
    """Half the distance between the bounds [A], of action units."""
    optimizer: Adam
    rng: np.random.Generator
    """Initial values are drawn from it."""
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def note(self, **values: Tensor) -> None:
        """Add scalars to the metrics of this block."""
        for name, value in values.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Means over the block so far; the next block begins at nothing."""
        found = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return found


class Update(Protocol):
    """One algorithm's gradient update, and all that it keeps from one to the next."""

    normals: int
    """Arrays of standard normals [N, A] that one update needs."""

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on."""
        ...

    def step(self, rows: Rows, normals: Tensor, rng: np.random.Generator) -> Tensor | None:
        """One update; temporal-difference errors [N], None where a step was not finite."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the end of a block, beside what was noted."""
        ...

    def state(self) -> dict[str, Array]:
        """Everything but the actor's parameters, by copy."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        ...


def trained_state(name: str, trained: Trained, *, parameters: bool = True) -> dict[str, Array]:
    """Parameters and moments under `name/...`, by copy."""
    state = {f"{name}/{key}": value for key, value in trained.state().items()}
    if parameters:
        state[f"{name}/parameters"] = trained.flat.values.numpy().copy()
    return state


def restore_trained(
    name: str, trained: Trained, state: Mapping[str, Array], *, parameters: bool = True
) -> None:
    """The inverse of `trained_state`."""
    own = {k.removeprefix(f"{name}/"): v for k, v in state.items() if k.startswith(f"{name}/")}
    trained.restore(own)
    if parameters:
        trained.flat.values.copy_(torch.from_numpy(own["parameters"]))
