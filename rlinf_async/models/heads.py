"""From the actor's output to log-probs and back, in numpy.

Axes: A outputs, N entries. Outputs are [A, N]: sums over A then add whole rows, in one order
whatever N is, and every row is contiguous.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlinf_async.models.mlp_kernel import MlpPair, aligned
from rlinf_async.models.policies import GaussianActorCritic

Float32 = NDArray[np.float32]

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Head(Protocol):
    """One distribution over actions, for calls of N entries."""

    def logp(self, output: Float32, action: NDArray[Any]) -> Float32:
        """Log-probs [N] of `action` ([A, N] float32, or [N] choices); kept for `backward`."""
        ...

    def entropy(self) -> float:
        """Mean entropy of the distributions of the last `logp`."""
        ...

    def backward(self, d_logp: Float32, entropy_weight: float, d_output: Float32) -> None:
        """Derivatives by the outputs, and by the head's own parameters, of the last `logp`.

        Args:
            d_logp: derivative of the loss by each log-prob, [N].
            entropy_weight: the loss contains minus this times the mean entropy.
            d_output: [A, N], overwritten.
        """
        ...


class GaussianHead:
    """Diagonal Gaussian with one learned log deviation for each action component."""

    def __init__(self, pair: MlpPair, rows: int) -> None:
        self._log_std = pair.weights["log_std"]
        self._d_log_std = pair.gradients["log_std"]
        size = len(self._log_std)
        self._z, self._square = aligned(size, rows), aligned(size, rows)
        self._logp = aligned(rows)
        self._inverse = np.empty((size, 1), dtype=np.float32)

    def logp(self, output: Float32, action: NDArray[Any]) -> Float32:
        """See `Head`; `output` is the mean."""
        inverse = self._inverse
        inverse[:, 0] = np.exp(-self._log_std)
        np.subtract(action, output, out=self._z)
        np.multiply(self._z, inverse, out=self._z)
        np.multiply(self._z, self._z, out=self._square)
        return gaussian_logp(self._square, self._log_std, out=self._logp)

    def entropy(self) -> float:
        """The same for every entry."""
        size = len(self._log_std)
        return float(self._log_std.sum(dtype=np.float64)) + size * (0.5 + HALF_LOG_TWO_PI)

    def backward(self, d_logp: Float32, entropy_weight: float, d_output: Float32) -> None:
        """See `Head`."""
        # d logp / d mean = z / std and d logp / d log_std = z^2 - 1.
        np.multiply(self._z, self._inverse, out=d_output)
        np.multiply(d_output, d_logp, out=d_output)
        np.dot(self._square, d_logp, out=self._d_log_std)
        self._d_log_std -= d_logp.sum() + np.float32(entropy_weight)


class CategoricalHead:
    """Softmax over A choices."""

    def __init__(self, pair: MlpPair, rows: int) -> None:
        size = pair.outputs
        self._log_p, self._p = aligned(size, rows), aligned(size, rows)
        self._rows = np.arange(rows)
        self._action: NDArray[Any] = np.zeros(rows, dtype=np.int64)

    def logp(self, output: Float32, action: NDArray[Any]) -> Float32:
        """See `Head`; `output` are logits."""
        log_softmax(output, out=self._log_p)
        np.exp(self._log_p, out=self._p)
        self._action = action
        chosen: Float32 = self._log_p[action, self._rows]
        return chosen

    def entropy(self) -> float:
        """The mean over the entries."""
        return -float((self._p * self._log_p).sum(dtype=np.float64)) / len(self._rows)

    def backward(self, d_logp: Float32, entropy_weight: float, d_output: Float32) -> None:
        """See `Head`."""
        # d logp / d logits = one_hot(action) - p, d entropy / d logits = -p (log p + entropy).
        np.multiply(self._p, -d_logp, out=d_output)
        d_output[self._action, self._rows] += d_logp
        if entropy_weight:
            entropy_N = -(self._p * self._log_p).sum(axis=0)
            slope = np.float32(entropy_weight / len(self._rows))
            d_output += slope * self._p * (self._log_p + entropy_N)


def make_head(pair: MlpPair, rows: int) -> Head:
    """The head of the pair's policy."""
    gaussian = isinstance(pair.policy, GaussianActorCritic)
    return GaussianHead(pair, rows) if gaussian else CategoricalHead(pair, rows)


def gaussian_logp(square: Float32, log_std: Float32, out: Float32) -> Float32:
    """-sum_A(z^2 / 2 + log_std + log(2 pi) / 2) from z^2 [..., A, N]; shared with acting."""
    constant = np.float32(log_std.sum(dtype=np.float64) + len(log_std) * HALF_LOG_TWO_PI)
    np.add.reduce(square, axis=-2, out=out)
    np.multiply(out, np.float32(-0.5), out=out)
    return np.subtract(out, constant, out=out)


def log_softmax(logits: Float32, out: Float32) -> Float32:
    """Along the axis before the last, [..., A, N]."""
    np.subtract(logits, logits.max(axis=-2, keepdims=True), out=out)
    total = np.exp(out).sum(axis=-2, keepdims=True)
    np.subtract(out, np.log(total), out=out)
    return out
