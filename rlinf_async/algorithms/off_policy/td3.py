"""Updates of twin delayed deterministic policy gradient (Fujimoto et al., 2018)."""

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
    mlp,
)
from rlinf_async.algorithms.off_policy.records import TD3
from rlinf_async.algorithms.off_policy.updates import Parts, Rows, restore_trained, trained_state

Array = npt.NDArray[Any]


class DelayedUpdate:
    """One gradient update of TD3."""

    normals = 1

    def __init__(self, record: TD3, parts: Parts) -> None:
        self._record, self._parts = record, parts
        self._layers = len(record.hidden)
        shapes = critic_shapes(
            parts.observations + parts.actions, record.hidden, record.critics, norm=False
        )
        self._critics = Trained(Flat(shapes, initial_values(shapes, parts.rng)), parts.optimizer)
        self._actor = Trained(parts.actor, parts.optimizer)
        self._target = Flat(shapes, self._critics.flat.values.clone(), gradient=False)
        self._actor_target = parts.actor.values.clone()
        self._actor_shapes = {name: tuple(v.shape) for name, v in parts.actor.still.items()}
        self._actor_still = Flat(self._actor_shapes, self._actor_target, gradient=False).still
        self._deviation = record.target_noise / parts.half_range
        self._clip = record.noise_clip / parts.half_range
        self._count = 0

    def set_rate(self, rate: float) -> None:
        """The learning rate of all parts from now on."""
        self._actor.set_rate(rate)
        self._critics.set_rate(rate)

    def step(self, rows: Rows, normals: Tensor, rng: np.random.Generator) -> Tensor | None:
        """One update; errors [N] of the first critic, None where a step was not finite."""
        with torch.no_grad():
            output = mlp(self._actor_still, rows["next"], self._parts.actor_layers)
            action = losses.smoothed_action(
                torch.tanh(output), normals[0], deviation=self._deviation, clip=self._clip
            )
            ahead = torch.cat([rows["next"], action], 1)
            next_EN = critics(self._target.still, ahead, self._layers, norm=False)
            target = rows["reward"] + rows["discount"] * next_EN.amin(0)
        joined = torch.cat([rows["obs"], rows["action"]], 1)
        q_EN = critics(self._critics.flat.live, joined, self._layers, norm=False)
        loss = losses.critic_loss(q_EN, target, rows.get("weight"))
        if not self._critics.step(loss):
            return None
        self._parts.note(critic_loss=loss, q=q_EN[0].mean())
        self._count += 1
        if self._count % self._record.actor_every == 0 and not self._delayed(rows["obs"]):
            return None
        return (q_EN[0] - target).detach()

    def _delayed(self, obs: Tensor) -> bool:
        """The actor's step by the first critic, and all targets."""
        action = torch.tanh(mlp(self._parts.actor.live, obs, self._parts.actor_layers))
        first = {name: each[:1] for name, each in self._critics.flat.still.items()}
        loss = -critics(first, torch.cat([obs, action], 1), self._layers, norm=False).mean()
        self._parts.note(actor_loss=loss)
        finite = self._actor.step(loss)
        self._target.values.lerp_(self._critics.flat.values, self._record.tau)
        self._actor_target.lerp_(self._parts.actor.values, self._record.tau)
        return finite

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}

    def state(self) -> dict[str, Array]:
        """Everything but the actor's parameters, by copy."""
        return {
            **trained_state("actor", self._actor, parameters=False),
            **trained_state("critics", self._critics),
            "critics/target": self._target.values.numpy().copy(),
            "actor/target": self._actor_target.numpy().copy(),
            "updates": np.array([self._count]),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        restore_trained("actor", self._actor, state, parameters=False)
        restore_trained("critics", self._critics, state)
        np.copyto(self._target.values.numpy(), state["critics/target"])
        np.copyto(self._actor_target.numpy(), state["actor/target"])
        self._count = int(state["updates"][0])
