"""Acting with the actors of off-policy algorithms, in numpy.

Axes: T horizon, n slots of the cell, N rows, A action components, O outputs of the net.

A row stores u, the action before its tanh; log-probs are those of the tanh's distribution on
[-1, 1]. There is no critic here: values are 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_async.execution.spaces import Spaces
from rlinf_async.models.fused_acting import Eye
from rlinf_async.models.squashed import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    SquashedPolicy,
    action_size,
    observation_size,
    views_of,
)

Array = NDArray[Any]
Float32 = NDArray[np.float32]

EDGE = np.float32(1.0 - 1e-6)
"""Actions are kept so far within [-1, 1] that their place before the tanh is finite."""


class Net:
    """The policy's MLP for calls of N rows each."""

    def __init__(self, policy: SquashedPolicy, rows: int) -> None:
        shapes = policy.parameter_shapes()
        size = sum(math.prod(shape) for shape in shapes.values())
        self.parameters: Float32 = np.zeros(size, np.float32)
        self.views: dict[str, Float32] = views_of(shapes, self.parameters)
        self.x: Float32 = np.zeros((rows, observation_size(policy.spaces)), np.float32)
        self._hidden = [np.empty((rows, units), np.float32) for units in policy.hidden]
        self.output: Float32 = np.empty((rows, policy.outputs), np.float32)

    def forward(self) -> Float32:
        """From `x` [N, D] to `output` [N, O]."""
        below = self.x
        for index, out in enumerate(self._hidden):
            np.matmul(below, self.views[f"hidden.{index}.weight"], out=out)
            np.add(out, self.views[f"hidden.{index}.bias"], out=out)
            below = np.maximum(out, np.float32(0.0), out=out)
        np.matmul(below, self.views["output.weight"], out=self.output)
        np.add(self.output, self.views["output.bias"], out=self.output)
        return self.output


class SquashedActor:
    """The `Actor` of a `SquashedGaussian` or `Deterministic` policy."""

    def __init__(self, policy: SquashedPolicy, slots: int, *, normalize: bool) -> None:
        self._net = Net(policy, slots)
        self._eye = Eye(policy.spaces, normalize=normalize)
        self._scale = policy.noise_scale()
        self._slots, self._size = slots, action_size(policy.spaces)
        self._shape = policy.spaces.action.shape
        self._uniform = False
        empty = np.empty((0, slots, self._size), np.float32)
        self._noise: Float32 = empty
        self._random: Float32 = empty
        self._logp: Float32 = np.empty((0, slots), np.float32)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy a weights row's parameters and observation moments."""
        np.copyto(self._net.parameters, weights["parameters"])
        self._eye.load(weights)
        self._uniform = bool(self._net.views["uniform"][0] > 0.5)

    def begin(self, rng: np.random.Generator, horizon: int) -> None:
        """Draw the noise of the whole segment, and as many uniform actions.

        Both are drawn in any case: the version that acts may change within the segment.
        """
        shape = (horizon, self._slots, self._size)
        self._noise = rng.standard_normal(shape, dtype=np.float32)
        self._random = 2.0 * rng.random(shape, dtype=np.float32) - np.float32(1.0)
        self._logp = np.zeros((horizon, self._slots), np.float32)

    def act(self, t: int, observation: Mapping[str, Array]) -> Array:
        """Actions before their tanh [n, *shape] for step t."""
        if self._uniform:
            self._logp[t] = -self._size * math.log(2.0)
            return before_tanh(self._random[t]).reshape(self._slots, *self._shape)
        self._eye.see(observation, self._net.x)
        output = self._net.forward()
        if self._scale is not None:
            moved = np.tanh(output) + self._noise[t] * self._scale
            return before_tanh(moved).reshape(self._slots, *self._shape)
        u, self._logp[t] = sample(output, self._noise[t])
        return u.reshape(self._slots, *self._shape)

    def finish(self, row: Mapping[str, Array], start: int, stop: int) -> None:
        """Write the log-probs of steps start to stop; values are 0."""
        row["logp"][start:stop] = self._logp[start:stop]
        row["value"][start:stop] = 0.0
        row["final_value"][start:stop] = 0.0

    def value(self, observation: Mapping[str, Array]) -> Float32:
        """Zeros [n]."""
        return np.zeros(self._slots, np.float32)

    def forget(self, slots: Array) -> None:
        """Nothing is remembered."""


class SquashedChooser:
    """Actions for any number of observations, outside a run."""

    def __init__(self, policy: SquashedPolicy, parameters: Float32) -> None:
        self._policy, self._parameters = policy, parameters
        self._scale = policy.noise_scale()
        self._names = [spec.name for spec in policy.spaces.observation]
        self._net = Net(policy, 0)

    def __call__(
        self, rows: Mapping[str, Array], deterministic: bool, rng: np.random.Generator
    ) -> Array:
        """Actions before their tanh [N, A] for observations [N, *shape] as the policy sees them.

        Samples of a `Deterministic` policy have its exploration noise.
        """
        x = np.concatenate([rows[name] for name in self._names], axis=1)
        if len(self._net.x) != len(x):
            self._net = Net(self._policy, len(x))
            np.copyto(self._net.parameters, self._parameters)
        self._net.x[...] = x
        output = self._net.forward()
        size = action_size(self._policy.spaces)
        if deterministic:
            return output[:, :size].copy()
        noise = rng.standard_normal((len(x), size), dtype=np.float32)
        if self._scale is not None:
            return before_tanh(np.tanh(output) + noise * self._scale)
        return sample(output, noise)[0]


def sample(output: Float32, noise: Float32) -> tuple[Float32, Float32]:
    """u [N, A] and its log-prob [N] from outputs [N, 2A] (mean, log deviation) and noise [N, A].

    logp = sum log N(u) - sum 2 (log 2 - u - softplus(-2 u)).
    """
    mean, log_std = np.split(output, 2, axis=1)
    log_std = np.clip(log_std, np.float32(LOG_STD_MIN), np.float32(LOG_STD_MAX))
    u = mean + noise * np.exp(log_std)
    normal = -0.5 * noise * noise - log_std - np.float32(0.5 * math.log(2.0 * math.pi))
    stretch = 2.0 * (np.float32(math.log(2.0)) - u - np.logaddexp(np.float32(0.0), -2.0 * u))
    return u, (normal - stretch).sum(axis=1)


def before_tanh(action: Float32) -> Float32:
    """u with tanh(u) = action; actions at or beyond the bounds are kept just within them."""
    return np.arctanh(np.clip(action, -EDGE, EDGE))


def after_tanh(u: Array) -> Float32:
    """Actions in [-1, 1] [..., A] of stored ones, as critics see them."""
    bounded: Float32 = np.tanh(u, dtype=np.float32)
    return bounded


def scaled(executed: Array, spaces: Spaces) -> Float32:
    """Actions in environments' units [N, *shape] as [N, A] in [-1, 1]."""
    low, high = np.array(spaces.action.low), np.array(spaces.action.high)
    flat = np.asarray(executed, np.float64).reshape(len(executed), -1)
    return np.asarray(np.clip(2.0 * (flat - low) / (high - low) - 1.0, -1.0, 1.0), np.float32)
