"""Updates of soft actor-critic and its kin: SAC, REDQ, RLPD, and CrossQ without targets.

Axes: E critics, N samples, A action components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlinf_async.algorithms.off_policy import losses
from rlinf_async.algorithms.off_policy.lowest import lowest
from rlinf_async.algorithms.off_policy.networks import (
    BatchNormCritics,
    Flat,
    Trained,
    critic_shapes,
    critics,
    initial_values,
    mlp,
)
from rlinf_async.algorithms.off_policy.records import SAC, CrossQ
from rlinf_async.algorithms.off_policy.updates import Parts, Rows, restore_trained, trained_state
from rlinf_async.algorithms.optimizers import Adam

Array = npt.NDArray[Any]


class Temperature:
    """log alpha with an Adam of its own, in plain floats."""

    def __init__(self, initial: float, record: Adam, *, target_entropy: float, tuned: bool) -> None:
        self.log_alpha = math.log(initial)
        self._record, self._target, self._tuned = record, target_entropy, tuned
        self._mean = self._square = 0.0
        self._steps = 0
        self.rate = record.rate(0.0)

    @property
    def alpha(self) -> float:
        """The weight of the entropy."""
        return math.exp(self.log_alpha)

    def step(self, logp_N: Tensor) -> None:
        """One step towards the target entropy."""
        if not self._tuned:
            return
        gradient = losses.temperature_gradient(logp_N, self._target)
        first, second = self._record.betas
        self._steps += 1
        self._mean += (1.0 - first) * (gradient - self._mean)
        self._square += (1.0 - second) * (gradient * gradient - self._square)
        root = math.sqrt(self._square / (1.0 - second**self._steps)) + self._record.eps
        self.log_alpha -= self.rate * self._mean / (1.0 - first**self._steps) / root

    def state(self) -> dict[str, Array]:
        """For a checkpoint."""
        values = [self.log_alpha, self._mean, self._square, float(self._steps)]
        return {"temperature": np.array(values)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        self.log_alpha, self._mean, self._square, steps = map(float, state["temperature"])
        self._steps = int(steps)


class SoftUpdate:
    """One gradient update of SAC (with REDQ's subsets or RLPD's layer norm) or of CrossQ."""

    normals = 2
    """Standard normals [N, A] that one update needs: for actions after the next observation, and
    for those of the actor's loss."""

    def __init__(self, record: SAC | CrossQ, parts: Parts) -> None:
        self._record, self._parts = record, parts
        self._layers, self._actor_layers = len(record.hidden), parts.actor_layers
        self._layer_norm = isinstance(record, SAC) and record.layer_norm
        self._batch_norm: BatchNormCritics | None = None
        cross = isinstance(record, CrossQ)
        inputs = parts.observations + parts.actions
        shapes = critic_shapes(
            inputs,
            record.hidden,
            record.critics,
            norm=self._layer_norm or cross,
            norm_inputs=cross,
        )
        self._actor = Trained(parts.actor, parts.optimizer)
        self._critics = Trained(Flat(shapes, initial_values(shapes, parts.rng)), parts.optimizer)
        if isinstance(record, CrossQ):
            self._batch_norm = BatchNormCritics(
                inputs, record.hidden, record.critics, momentum=record.momentum
            )
            self._target = self._critics.flat
        else:
            values = self._critics.flat.values.clone()
            self._target = Flat(shapes, values, gradient=False)
        entropy = record.target_entropy
        self.temperature = Temperature(
            record.temperature,
            parts.optimizer,
            target_entropy=-float(parts.actions) if entropy is None else entropy,
            tuned=not isinstance(record, SAC) or record.tune_temperature,
        )
        self._count = 0

    def set_rate(self, rate: float) -> None:
        """The learning rate of all parts from now on."""
        self._actor.set_rate(rate)
        self._critics.set_rate(rate)
        self.temperature.rate = rate

    def step(self, rows: Rows, normals: Tensor, rng: np.random.Generator) -> Tensor | None:
        """One update; |error| [N] of the first critic, None where a step was not finite."""
        alpha = self.temperature.alpha
        with torch.no_grad():
            output = mlp(self._parts.actor.still, rows["next"], self._actor_layers)
            action, logp = losses.squashed_sample(output, normals[0])
        joined = torch.cat([rows["obs"], rows["action"]], 1)
        ahead = torch.cat([rows["next"], action], 1)
        q_EN, next_EN = self._predictions(joined, ahead, rng)
        target = losses.soft_target(rows["reward"], rows["discount"], next_EN, logp, alpha)
        loss = losses.critic_loss(q_EN, target, rows.get("weight"))
        if not self._critics.step(loss):
            return None
        self._parts.note(critic_loss=loss, q=q_EN[0].mean())
        self._count += 1
        if self._count % self._record.actor_every == 0 and not self._actor_step(
            rows["obs"], normals[1], alpha
        ):
            return None
        if isinstance(self._record, SAC):
            self._target.values.lerp_(self._critics.flat.values, self._record.tau)
        return (q_EN[0] - target).detach()

    def _predictions(
        self, joined: Tensor, ahead: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Q(s, a) with gradient and Q'(s', a') without, each [E, N] (or a subset of E)."""
        if self._batch_norm is not None:
            both = self._batch_norm(
                self._critics.flat.live, torch.cat([joined, ahead]), training=True
            )
            q_EN, next_EN = both.chunk(2, dim=1)
            return q_EN, next_EN.detach()
        q_EN = critics(self._critics.flat.live, joined, self._layers, norm=self._layer_norm)
        target = self._target.still
        assert isinstance(self._record, SAC)
        if self._record.subset is not None and self._record.subset < self._record.critics:
            chosen = np.sort(rng.permutation(self._record.critics)[: self._record.subset])
            index = torch.from_numpy(chosen)
            target = {name: each[index] for name, each in target.items()}
        with torch.no_grad():
            return q_EN, critics(target, ahead, self._layers, norm=self._layer_norm)

    def _actor_step(self, obs: Tensor, normals: Tensor, alpha: float) -> bool:
        """Actor and temperature; critics and their running statistics stay as they are."""
        output = mlp(self._parts.actor.live, obs, self._actor_layers)
        action, logp = losses.squashed_sample(output, normals)
        self.temperature.step(logp.detach())
        joined = torch.cat([obs, action], 1)
        still = self._critics.flat.still
        subset = isinstance(self._record, SAC) and self._record.subset is not None
        if self._batch_norm is not None:
            q_EN = self._batch_norm(still, joined, training=False)
        elif subset or self._layer_norm:
            q_EN = critics(still, joined, self._layers, norm=self._layer_norm)
        else:
            q_EN = lowest(joined, still, self._layers).unsqueeze(0)
        loss = losses.actor_loss(logp, q_EN, alpha, mean=subset)
        self._parts.note(actor_loss=loss, entropy=-logp.mean())
        return self._actor.step(loss)

    def metrics(self) -> dict[str, float]:
        """Of the end of a block."""
        return {"temperature": self.temperature.alpha}

    def state(self) -> dict[str, Array]:
        """Everything but the actor's parameters, by copy."""
        state = {
            **trained_state("actor", self._actor, parameters=False),
            **trained_state("critics", self._critics),
            **self.temperature.state(),
            "updates": np.array([self._count]),
        }
        if self._batch_norm is not None:
            state["critics/running"] = self._batch_norm.running.numpy().copy()
        else:
            state["critics/target"] = self._target.values.numpy().copy()
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        restore_trained("actor", self._actor, state, parameters=False)
        restore_trained("critics", self._critics, state)
        self.temperature.restore(state)
        self._count = int(state["updates"][0])
        if self._batch_norm is not None:
            np.copyto(self._batch_norm.running.numpy(), state["critics/running"])
        else:
            np.copyto(self._target.values.numpy(), state["critics/target"])
