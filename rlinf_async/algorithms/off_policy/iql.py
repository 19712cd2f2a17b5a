"""Updates of implicit Q-learning (Kostrikov et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlinf_async.algorithms.off_policy import losses
from rlinf_async.algorithms.off_policy.networks import (
    Flat,
    Trained,
    critic_shapes,
    critics,
    initial_values,
)
from rlinf_async.algorithms.off_policy.networks import mlp as network
from rlinf_async.algorithms.off_policy.records import IQL
from rlinf_async.algorithms.off_policy.updates import Parts, Rows, restore_trained, trained_state

Array = npt.NDArray[Any]

EDGE_OF_DATA = 0.999
"""Recorded actions at the bounds lie infinitely far out before the tanh: kept within this."""


class ImplicitUpdate:
    """One gradient update of IQL: value, critics, actor, targets. No action is ever sampled."""

    normals = 0

    def __init__(self, record: IQL, parts: Parts) -> None:
        self._record, self._parts = record, parts
        self._layers = len(record.hidden)
        inputs = parts.observations + parts.actions
        shapes = critic_shapes(inputs, record.hidden, record.critics, norm=False)
        value = critic_shapes(parts.observations, record.hidden, 1, norm=False)
        self._critics = Trained(Flat(shapes, initial_values(shapes, parts.rng)), parts.optimizer)
        self._value = Trained(Flat(value, initial_values(value, parts.rng)), parts.optimizer)
        self._actor = Trained(parts.actor, parts.optimizer)
        self._target = Flat(shapes, self._critics.flat.values.clone(), gradient=False)

    def set_rate(self, rate: float) -> None:
        """The learning rate of all parts from now on."""
        for each in (self._actor, self._critics, self._value):
            each.set_rate(rate)

    def step(self, rows: Rows, normals: Tensor, rng: np.random.Generator) -> Tensor | None:
        """One update; errors [N] of the first critic, None where a step was not finite."""
        record = self._record
        joined = torch.cat([rows["obs"], rows["action"]], 1)
        with torch.no_grad():
            taken = critics(self._target.still, joined, self._layers, norm=False).amin(0)
        u_N = taken - self._v(self._value.flat.live, rows["obs"])
        value_loss = losses.expectile_loss(u_N, record.expectile)
        if not self._value.step(value_loss):
            return None
        with torch.no_grad():
            ahead = self._v(self._value.flat.still, rows["next"])
            target = rows["reward"] + rows["discount"] * ahead
        q_EN = critics(self._critics.flat.live, joined, self._layers, norm=False)
        loss = losses.critic_loss(q_EN, target, rows.get("weight"))
        if not self._critics.step(loss):
            return None
        self._parts.note(critic_loss=loss, value_loss=value_loss, q=q_EN[0].mean())
        if not self._actor_step(rows, u_N.detach()):
            return None
        self._target.values.lerp_(self._critics.flat.values, record.tau)
        return (q_EN[0] - target).detach()

    def _v(self, parameters: dict[str, Tensor], obs: Tensor) -> Tensor:
        return critics(parameters, obs, self._layers, norm=False)[0]

    def _actor_step(self, rows: Rows, u_N: Tensor) -> bool:
        output = network(self._parts.actor.live, rows["obs"], self._parts.actor_layers)
        action = rows["action"].clamp(-EDGE_OF_DATA, EDGE_OF_DATA)
        logp = losses.squashed_logp(output, action)
        weight = losses.advantage_weights(u_N, beta=self._record.beta, cap=self._record.weight_cap)
        loss = -(weight * logp).mean()
        self._parts.note(actor_loss=loss, logp=logp.mean(), weight=weight.mean())
        return self._actor.step(loss)

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}

    def state(self) -> dict[str, Array]:
        """Everything but the actor's parameters, by copy."""
        return {
            **trained_state("actor", self._actor, parameters=False),
            **trained_state("critics", self._critics),
            **trained_state("value", self._value),
            "critics/target": self._target.values.numpy().copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        restore_trained("actor", self._actor, state, parameters=False)
        restore_trained("critics", self._critics, state)
        restore_trained("value", self._value, state)
        np.copyto(self._target.values.numpy(), state["critics/target"])
