"""The learner for the built-in policies and PPO's loss: gradients by hand, in numpy.

For nets of this size a framework's dispatch costs several times the arithmetic. Axes: N entries of
a batch, n of a mini-batch, D observation numbers, A outputs of the actor, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from rlinf_async.algorithms.advantages import Advantages, normalized
from rlinf_async.algorithms.batching import JOINED, Prepared, minibatches, permutation
from rlinf_async.algorithms.fused_adam import FusedAdam
from rlinf_async.algorithms.fused_loss import policy_part, value_part
from rlinf_async.algorithms.learner import (
    NonFiniteGuard,
    explained_variance,
    preparation,
)
from rlinf_async.algorithms.losses import PPOLoss, number
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.algorithms.self_check import first_log_ratio
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models.heads import make_head
from rlinf_async.models.mlp_kernel import MlpPair, TrainPass
from rlinf_async.models.policies import BuiltinPolicy

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

log = structlog.get_logger()

METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class FusedLearner:
    """Trains a built-in policy; see `Learner` and the module."""

    name = "fused"

    def __init__(
        self,
        policy: BuiltinPolicy,
        spaces: Spaces,
        *,
        loss: PPOLoss,
        optimizer: Adam,
        advantages: Advantages,
        epochs: int,
        minibatch: int,
        normalize: bool,
        iterations: int,
    ) -> None:
        self.reason = ""
        self._pair: MlpPair = policy.to_kernel()
        self._adam = FusedAdam(optimizer, self._pair.parameters, self._pair.gradient)
        self._record, self._loss, self._optimizer = loss, loss.at(0.0), optimizer
        self._epochs, self._minibatch = epochs, minibatch
        self._iterations = iterations
        self._discrete = spaces.action.kind == "discrete"
        self._prepare = preparation(loss, advantages, normalized=normalize, joined=True)
        self._steps: dict[int, _Step] = {}
        self.guard = NonFiniteGuard()

    @property
    def parameters(self) -> Float32:
        """The live flat vector [P]."""
        return self._pair.parameters

    def load(self, parameters: Float32) -> None:
        """Copy [P] in; BadInput if it is of another size."""
        if parameters.shape != self.parameters.shape:
            raise BadInput(
                type(self._pair.policy).__name__,
                "parameters of another shape",
                expected=list(self.parameters.shape),
                got=list(parameters.shape),
            )
        np.copyto(self.parameters, parameters)

    def state(self) -> dict[str, Array]:
        """Adam's moments [P] and its step count [1], by copy."""
        return self._adam.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        self._adam.restore(state)

    def update(
        self,
        batch: Mapping[str, Array],
        *,
        statistics: Statistics,
        scales: Mapping[int, float],
        version: int,
        seed: int,
    ) -> dict[str, float]:
        """One iteration; see `Learner.update`."""
        prepared = self._prepare(
            batch, statistics=statistics, scales=scales, version=version, evaluator=self
        )
        x, action, columns = self._entries(prepared)
        self._loss = self._record.at(version / self._iterations)
        self._adam.rate = self._optimizer.rate(version / self._iterations)
        skipped_before = self.guard.skipped
        sums, taken, extra = np.zeros(len(METRICS) + 1), 0, {}
        for epoch in range(self._epochs):
            order = permutation(len(prepared), seed=seed, version=version, epoch=epoch)
            shuffled = np.take(columns, order, axis=1)
            chosen = np.take(action, order, axis=-1)
            for count, at in enumerate(minibatches(len(prepared), self._minibatch)):
                step = self._step(at.stop - at.start)
                np.take(x, order[at], axis=0, out=step.x, mode="clip")
                step.forward(chosen[..., at])
                if epoch == count == 0:
                    acted = prepared.version[order[at]] == version
                    logp_old = prepared.logp_old[order[at]]
                    extra = first_log_ratio(step.logp, logp_old, acted, version)
                parts = self._one_step(step, shuffled[:, at])
                if parts is not None:
                    sums += parts
                    taken += 1
        return {
            **self._means(sums, taken),
            **extra,
            "learning_rate": self._adam.rate,
            "explained_variance": explained_variance(prepared.value_old, prepared.returns),
            "skipped_steps": float(self.guard.skipped - skipped_before),
        }

    def logp(
        self, observations: Mapping[str, Array], action: Array, executed: Array | None = None
    ) -> Float32:
        """Log-probs [M] of `action` [M, *shape]; built-in policies have no chunks."""
        assert executed is None, "chunks go to the torch learner"
        chosen = self._columns_of(action)
        result: Float32 = np.empty(len(action), dtype=np.float32)
        for at, index in self._padded(len(action)):
            step = self._step(len(index))
            np.take(observations[JOINED], index, axis=0, out=step.x[:, :-1], mode="clip")
            step.forward(np.take(chosen, index, axis=-1))
            result[at] = step.logp[: at.stop - at.start]
        return result

    def value(self, observations: Mapping[str, Array]) -> Float32:
        """Values [M]."""
        rows = observations[JOINED]
        result: Float32 = np.empty(len(rows), dtype=np.float32)
        for at, index in self._padded(len(rows)):
            step = self._step(len(index))
            np.take(rows, index, axis=0, out=step.x[:, :-1], mode="clip")
            step.nets.forward()
            result[at] = step.nets.value[: at.stop - at.start]
        return result

    def _entries(self, prepared: Prepared) -> tuple[Float32, Array, Float32]:
        """x [N, D + 1] with its column of ones, actions [A, N] or [N], and the other columns."""
        observations = prepared.observations[JOINED]
        x: Float32 = np.ones((len(observations), observations.shape[1] + 1), dtype=np.float32)
        x[:, :-1] = observations
        advantage = prepared.advantage
        if self._loss.normalize_advantages == "batch":
            advantage = normalized(advantage)
        columns = [prepared.logp_base, advantage, prepared.value_old, prepared.returns]
        if prepared.weight is not None:
            columns.append(prepared.weight)
        return x, self._columns_of(prepared.action), np.stack(columns)

    def _columns_of(self, action: Array) -> Array:
        if self._discrete:
            return action
        return np.ascontiguousarray(action.reshape(len(action), -1).T)

    def _step(self, rows: int) -> _Step:
        if rows not in self._steps:
            self._steps[rows] = _Step(self._pair, rows)
        return self._steps[rows]

    def _one_step(self, step: _Step, columns: Float32) -> npt.NDArray[np.float64] | None:
        """Derivatives, clipping, Adam; metrics of the step, or None where it was skipped."""
        loss = self._loss
        logp_base, advantage, value_old, returns = columns[:4]
        weight = columns[4] if len(columns) == 5 else None
        if loss.normalize_advantages == "minibatch":
            advantage = normalized(advantage)
        slope, (policy_loss, kl, clipped) = policy_part(
            loss, step.logp, logp_base, advantage, weight
        )
        value_slope, value_loss, far = value_part(loss, step.nets.value, value_old, returns)
        entropy = step.head.entropy()
        step.backward(slope, value_slope, number(loss.entropy_weight))
        norm = self._adam.norm()
        if not np.isfinite(norm + policy_loss + value_loss):
            self.guard.skip(lambda: {"x": step.x.copy(), "columns": columns.copy()})
            return None
        self.guard.step()
        self._adam.step(norm)
        parts = (policy_loss, value_loss, entropy, kl, clipped, norm, far)
        return np.array(parts)

    def _means(self, sums: npt.NDArray[np.float64], taken: int) -> dict[str, float]:
        if not taken:
            return {}
        means = (sums / taken).tolist()
        metrics = dict(zip(METRICS, means, strict=False))
        if self._loss.value_clip is not None:
            metrics["value_clip_fraction"] = means[-1]
        return metrics

    def _padded(self, count: int) -> list[tuple[slice, npt.NDArray[np.int64]]]:
        """Row ranges of one fixed size; the last is filled up with its first row."""
        size = self._minibatch
        ranges = []
        for start in range(0, count, size):
            index = np.arange(start, start + size)
            index[index >= count] = start
            ranges.append((slice(start, min(start + size, count)), index))
        return ranges


class _Step:
    """Buffers for mini-batches of one size."""

    def __init__(self, pair: MlpPair, rows: int) -> None:
        self.nets = TrainPass(pair, rows)
        self.head = make_head(pair, rows)
        self.x = self.nets.x
        self.logp: Float32 = np.empty(rows, dtype=np.float32)

    def forward(self, action: Array) -> None:
        """From `x` and `action` to `logp` and values."""
        self.nets.forward()
        self.logp = self.head.logp(self.nets.output, action)

    def backward(self, d_logp: Float32, d_value: Float32, entropy_weight: float) -> None:
        """From the loss's derivatives to the gradient of all parameters."""
        self.head.backward(d_logp, entropy_weight, self.nets.d_output)
        np.copyto(self.nets.d_value, d_value)
        self.nets.backward()
