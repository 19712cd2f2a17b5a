"""Acting for one cell: what the rollout worker needs from any policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlinf_async.execution.memory import state_shape
from rlinf_async.execution.spaces import Spaces

Array = NDArray[Any]


class Actor(Protocol):
    """Acts for the n slots of a cell; every policy call has the cell's fixed shape.

    The same weights, generator and observations give the same bits in every process of a machine.
    """

    def load(self, weights: Mapping[str, Array]) -> None:
        """Use the parameters and observation moments of a weights row from now on."""
        ...

    def begin(self, rng: np.random.Generator, horizon: int) -> None:
        """Start a segment of `horizon` steps, whose noise comes from `rng`."""
        ...

    def act(self, t: int, observation: Mapping[str, Array]) -> Array:
        """Actions [n, *shape] in the row's dtype for raw observations [n, *shape] before step t."""
        ...

    def finish(self, row: Mapping[str, Array], start: int, stop: int) -> None:
        """Write `logp`, `value`, `final_value` of steps start to stop with the loaded weights."""
        ...

    def value(self, observation: Mapping[str, Array]) -> Array:
        """Values [n] float32 of raw observations [n, *shape], given the present memory."""
        ...

    def forget(self, slots: Array) -> None:
        """Episodes of `slots` [n] bool have ended: what is remembered of them is gone."""
        ...


@dataclass(frozen=True, slots=True)
class ActCall:
    """What `actor.act(t, observation)` is called with."""

    actor: Any
    t: int
    observation: Mapping[str, Array]


def act_together(calls: Sequence[ActCall]) -> list[Array]:
    """The actions of several cells that have the same weights loaded, from one policy call.

    Their last bits depend on which cells come together. Actors of a policy's own that cannot act
    together act one after the other.
    """
    together = getattr(type(calls[0].actor), "act_together", None)
    if together is None or len(calls) == 1:
        return [call.actor.act(call.t, call.observation) for call in calls]
    actions: list[Array] = together(calls)
    return actions


def make_actor(policy: Any, spaces: Spaces, slots: int, *, normalize: bool) -> Actor:
    """The actor for `policy`: numpy for built-in policies without chunks, else torch.

    Args:
        policy: a built-in record, or a torch module with `act` and `value`.
        slots: n, the environments of the cell.
        normalize: whether observations are normalised with the weights row's moments.
    """
    if hasattr(policy, "to_actor"):
        own: Actor = policy.to_actor(slots, normalize=normalize)
        return own
    if hasattr(policy, "to_kernel") and spaces.chunk == 1:
        from rlinf_async.models.fused_acting import FusedActor

        return FusedActor(policy, spaces, slots, normalize=normalize)
    from rlinf_async.models.torch_acting import RecurrentActor, TorchActor

    actor = RecurrentActor if state_shape(policy) else TorchActor
    return actor(policy, spaces, slots, normalize=normalize)
