"""The learner of off-policy algorithms: stores a batch, then makes a block of gradient updates.

Gradient block n samples from exactly the batches 0 to n, with the generator (seed, n), whatever
else has arrived, so that a seed gives the same numbers wherever its parts are placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlinf_async.algorithms.batching import JOINED, normalize_rows
from rlinf_async.algorithms.learner import NonFiniteGuard
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.off_policy.iql import ImplicitUpdate
from rlinf_async.algorithms.off_policy.networks import Flat
from rlinf_async.algorithms.off_policy.records import IQL, TD3, OffPolicy
from rlinf_async.algorithms.off_policy.sampling import Memory, Sample
from rlinf_async.algorithms.off_policy.soft import SoftUpdate
from rlinf_async.algorithms.off_policy.td3 import DelayedUpdate
from rlinf_async.algorithms.off_policy.updates import Parts, Update
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.models.squashed import (
    SquashedPolicy,
    action_size,
    half_ranges,
    observation_size,
)
from rlinf_async.models.squashed_acting import after_tanh

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

BLOCK_STREAM = 5
"""Seed word of what gradient blocks draw: samples, noise, subsets."""
CRITIC_STREAM = 6
"""Seed word of the critics' initial values."""
TOGETHER = 16
"""Updates whose samples are taken from the replay at once where sampling is uniform."""


class OffPolicyLearner:
    """Holds actor, critics and replay; see `algorithms.learner.Learner`.

    Metrics of `update`: what the algorithm notes, means over the block; `replay_steps`, `updates`,
    `learning_rate`, `skipped_steps`.
    """

    def __init__(
        self,
        policy: SquashedPolicy,
        *,
        algorithm: OffPolicy,
        memory: Memory,
        optimizer: Adam,
        updates: int,
        minibatch: int,
        warmup: int,
        n_step: int,
        normalize: bool,
        iterations: int,
        seed: int,
    ) -> None:
        """`updates`: gradient updates after each batch, once `warmup` steps are stored."""
        self.name = type(algorithm).__name__.lower()
        self.reason = f"{type(algorithm).__name__} learns from replay"
        self.guard = NonFiniteGuard()
        self.memory = memory
        self._optimizer, self._iterations = optimizer, iterations
        self._updates, self._minibatch, self._warmup = updates, minibatch, warmup
        self._n_step, self._gamma, self._normalize = n_step, algorithm.gamma, normalize
        spaces = policy.spaces
        self._names = [spec.name for spec in spaces.observation]
        self._actions = action_size(spaces)
        shapes = policy.parameter_shapes()
        size = sum(int(np.prod(shape)) for shape in shapes.values())
        self._actor = Flat(shapes, torch.zeros(size))
        self._parts = Parts(
            actor=self._actor,
            actor_layers=len(policy.hidden),
            observations=observation_size(spaces),
            actions=self._actions,
            half_range=torch.from_numpy(half_ranges(spaces.action).copy()),
            optimizer=optimizer,
            rng=_generator(seed, CRITIC_STREAM),
        )
        self._algorithm, self._seed = algorithm, seed
        self._update: Update = _update_of(algorithm, self._parts)
        self._started = False

    @property
    def parameters(self) -> Float32:
        """The actor's live flat vector [P]."""
        values: Float32 = self._actor.values.numpy()
        return values

    def load(self, parameters: Float32) -> None:
        """Copy the actor's [P] in; TD3's target becomes the same."""
        np.copyto(self.parameters, parameters)
        if not self._started:
            # Targets begin as copies: built again now that the actor has its initial values.
            self._parts.rng = _generator(self._seed, CRITIC_STREAM)
            self._update = _update_of(self._algorithm, self._parts)

    def update(
        self,
        batch: Mapping[str, Array],
        *,
        statistics: Statistics,
        scales: Mapping[int, float],
        version: int,
        seed: int,
    ) -> dict[str, float]:
        """Store batch n = `version`, then make the block's updates; metrics."""
        self.memory.insert({**batch, "action": self._bounded(batch["action"])})
        stored = len(self.memory)
        metrics = {"replay_steps": float(stored)}
        if self.memory.online and stored < max(self._warmup, 1):
            return {**metrics, "updates": 0.0}
        self._started = True
        rate = self._optimizer.rate(version / self._iterations)
        self._update.set_rate(rate)
        skipped = self.guard.skipped
        self._block(_generator(seed, BLOCK_STREAM, version), statistics)
        # Enough was collected at random: from this version on the actor itself acts.
        self._actor.still["uniform"].zero_()
        return {
            **metrics,
            **self._parts.means(),
            **self._update.metrics(),
            "updates": float(self._updates),
            "learning_rate": rate,
            "skipped_steps": float(self.guard.skipped - skipped),
        }

    def state(self) -> dict[str, Array]:
        """All but the actor's parameters and the replay, by copy."""
        return self._update.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        self._started = True
        self._update.restore(state)

    def _bounded(self, action: Array) -> Float32:
        """Stored actions [T, B, *shape] as critics see them, [T, B, A] in [-1, 1]."""
        return after_tanh(action).reshape(*action.shape[:2], self._actions)

    def _block(self, rng: np.random.Generator, statistics: Statistics) -> None:
        size, left = self._minibatch, self._updates
        while left:
            count = 1 if self.memory.learns_from_errors else min(left, TOGETHER)
            sample = self.memory.sample(
                count * size, rng, steps=self._n_step, gamma=self._gamma, minibatches=count
            )
            rows = self._tensors(sample, statistics)
            shape = (count, self._update.normals, size, self._actions)
            normals = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            for number in range(count):
                at = slice(number * size, (number + 1) * size)
                minibatch = {name: each[at] for name, each in rows.items()}
                error = self._update.step(minibatch, normals[number], rng)
                self._watch(minibatch, error)
                if error is not None and self.memory.learns_from_errors:
                    self.memory.learn(sample, error.numpy())
            left -= count

    def _watch(self, minibatch: dict[str, Tensor], error: Tensor | None) -> None:
        if error is None:
            self.guard.skip(lambda: {name: rows.numpy().copy() for name, rows in minibatch.items()})
        else:
            self.guard.step()

    def _tensors(self, sample: Sample, statistics: Statistics) -> dict[str, Tensor]:
        rows = {
            name: torch.from_numpy(sample.rows[name]) for name in ("action", "reward", "discount")
        }
        if self.memory.learns_from_errors:
            rows["weight"] = torch.from_numpy(sample.rows["weight"])
        for name in ("obs", "next"):
            raw = {each: sample.rows[f"{name}/{each}"] for each in self._names}
            seen = normalize_rows(raw, statistics, normalized=self._normalize, joined=True)
            rows[name] = torch.from_numpy(seen[JOINED])
        return rows


def _generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def _update_of(algorithm: OffPolicy, parts: Parts) -> Update:
    if isinstance(algorithm, TD3):
        return DelayedUpdate(algorithm, parts)
    if isinstance(algorithm, IQL):
        return ImplicitUpdate(algorithm, parts)
    return SoftUpdate(algorithm, parts)
