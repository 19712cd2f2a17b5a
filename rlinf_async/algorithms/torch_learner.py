"""The learner for any torch policy and any loss, trimmed for small nets.

Most of a small step's time is dispatch, so all parameters and all gradients are views of one flat
tensor each (one clip, one Adam for all of them), entries are gathered once an epoch into buffers
made once, and mini-batches are slices of those.

A loss of the user's own is a named function `loss(module, minibatch) -> (loss, metrics)`: `module`
is the policy, `loss` a scalar with gradient that is a mean over the entries, `metrics` a mapping to
scalars. `minibatch` maps names to tensors over N entries:

    obs/<name>      [N, *shape] as the policy sees it (`observation_of` strips the prefix)
    action          [N, *shape]
    logp            [N], of the version that acted
    logp_base, value, return      [N], as in `batching.Prepared`
    advantage, advantage_normalized   [N], raw and normalised over the whole batch
    version         [N] int64, the version that acted
    executed        [N] int64, with chunks only: so many actions of each were simulated
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rlinf_async.algorithms.advantages import Advantages, normalized
from rlinf_async.algorithms.batching import Prepared, even_parts, minibatches, permutation
from rlinf_async.algorithms.flat_adam import FlatAdam
from rlinf_async.algorithms.learner import (
    Loss,
    NonFiniteGuard,
    explained_variance,
    preparation,
)
from rlinf_async.algorithms.losses import BuiltinLoss, CloningLoss, PPOLoss
from rlinf_async.algorithms.losses_torch import builtin_loss
from rlinf_async.algorithms.module_evaluator import ModuleEvaluator
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.algorithms.reference import Reference
from rlinf_async.algorithms.self_check import first_log_ratio
from rlinf_async.algorithms.spread import Spread, shards_of
from rlinf_async.errors import BadInput
from rlinf_async.models.modules import as_module, flatten, policy_calls

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Minibatch = dict[str, Tensor]

KL_ALLOWANCE = 1.5
"""An update ends when the approximate KL is above this times `target_kl` (as in Spinning Up)."""

_OBSERVATION = "obs/"


class TorchLearner:
    """Trains any torch policy; see `Learner` and the module."""

    name = "torch"

    def __init__(
        self,
        policy: Any,
        *,
        loss: Loss,
        optimizer: Adam,
        advantages: Advantages,
        epochs: int,
        minibatch: int,
        normalize: bool,
        iterations: int,
        shards: int = 1,
    ) -> None:
        self.reason = ""
        self.module: nn.Module = as_module(policy)
        flat, gradient = flatten(self.module, gradient=True)
        assert gradient is not None, "asked for"
        self._flat = flat
        self._adam = FlatAdam(optimizer, flat, gradient, dict(self.module.named_parameters()))
        self._record, self._loss, self._optimizer = loss, loss, optimizer
        self._reference = Reference(loss, normalize=normalize)
        self._epochs, self._minibatch = epochs, minibatch
        self._iterations, self.shards = iterations, shards
        self._prepare = preparation(loss, advantages, normalized=normalize, joined=False)
        self._evaluator = ModuleEvaluator(self.module, rows=minibatch)
        self.guard = NonFiniteGuard()
        self._buffers: Minibatch = {}
        self._progress = 0.0
        self.spread: Spread | None = None
        """Through which other processes compute shards of the gradient; None: all are its own."""

    @property
    def parameters(self) -> Float32:
        """The live flat vector [P]."""
        live: Float32 = self._flat.numpy()
        return live

    def load(self, parameters: Float32) -> None:
        """Copy [P] in; BadInput if it is of another size."""
        if parameters.shape != self.parameters.shape:
            raise BadInput(
                type(self.module).__name__,
                "parameters of another shape",
                expected=list(self.parameters.shape),
                got=list(parameters.shape),
            )
        np.copyto(self.parameters, parameters)
        self._adam.restart_average()
        self._reference.begin_at(parameters)

    def state(self) -> dict[str, Array]:
        """The optimizer's vectors [P], its step count [1] and the reference [P], by copy."""
        return {**self._adam.state(), **self._reference.state()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        self._adam.restore(state)
        self._reference.restore(state)

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
            batch,
            statistics=statistics,
            scales=scales,
            version=version,
            evaluator=self._evaluator,
        )
        self.begin(version / self._iterations)
        entries = self._entries(prepared, batch)
        if self._reference.wanted:
            entries["logp_reference"] = self._reference.logp(
                self._evaluator,
                self.parameters,
                prepared.observations,
                prepared.action,
                prepared.executed,
            )
        metrics = self._run_epochs(entries, seed=seed, version=version)
        metrics["explained_variance"] = explained_variance(prepared.value_old, prepared.returns)
        return metrics

    def begin(self, progress: float) -> None:
        """Schedules stand where they are after this share of the run."""
        self._progress = progress
        if isinstance(self._record, BuiltinLoss):
            self._loss = self._record.at(progress)
        self._adam.rate = self._optimizer.rate(progress)

    @property
    def gradient(self) -> Float32:
        """The live gradient [P]; it changes with every shard."""
        live: Float32 = self._adam.gradient.numpy()
        return live

    def minibatch(self, arrays: Mapping[str, Array]) -> Minibatch:
        """A mini-batch of arrays [n, ...], by reference."""
        return {name: torch.from_numpy(rows) for name, rows in arrays.items()}

    def cuts(self, part: Minibatch) -> list[slice]:
        """Where a mini-batch is cut into shards."""
        return even_parts(len(part["logp"]), self.shards)

    def shard_gradient(
        self, part: Minibatch, at: slice, *, fresh: bool
    ) -> tuple[dict[str, Tensor], bool]:
        """Add the gradient of the shard `at` to `gradient`, which begins at zero if `fresh`.

        Returns the shard's part of the metrics, and whether its loss is finite.
        """
        if fresh:
            self._adam.gradient.zero_()
        count = part["logp"].numel()
        whole = at.stop - at.start == len(part["logp"])
        shard = part if whole else {name: rows[at] for name, rows in part.items()}
        loss, parts = self._loss_of(shard, count)
        loss.backward()  # type: ignore[no-untyped-call]
        return parts, bool(torch.isfinite(loss.detach()))

    def _run_epochs(
        self, entries: dict[str, Array], *, seed: int, version: int
    ) -> dict[str, float]:
        """Optimizer steps over all mini-batches of all epochs, and their metrics."""
        sums = _Sums()
        skipped_before = self.guard.skipped
        for number, (at, part) in enumerate(self._parts(entries, seed, version)):
            if number == 0:
                sums.extra.update(self._self_check(part, version))
            if not self._step(at, part, sums):
                break
        metrics = sums.means()
        metrics["learning_rate"] = self._adam.rate
        metrics["skipped_steps"] = float(self.guard.skipped - skipped_before)
        return metrics

    def _parts(
        self, entries: dict[str, Array], seed: int, version: int
    ) -> Iterator[tuple[slice, Minibatch]]:
        """The mini-batches of all epochs with their places; the next epoch overwrites them."""
        units = len(entries["logp"])
        at_once = max(1, self._minibatch * units // entries["logp"].size)
        for epoch in range(self._epochs):
            order = permutation(units, seed=seed, version=version, epoch=epoch)
            shuffled = self._shuffle(entries, order)
            for at in minibatches(units, at_once):
                part = {name: rows[at] for name, rows in shuffled.items()}
                self._normalize_minibatch(part)
                yield at, part

    def _entries(self, prepared: Prepared, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays [units, ...] that an epoch shuffles, by their name in a mini-batch."""
        entries = {_OBSERVATION + name: rows for name, rows in prepared.observations.items()}
        entries |= {
            "action": prepared.action,
            "logp": prepared.logp_old,
            "logp_base": prepared.logp_base,
            "value": prepared.value_old,
            "advantage": prepared.advantage,
            "return": prepared.returns,
            "version": prepared.version,
        }
        if prepared.executed is not None:
            entries["executed"] = prepared.executed
        if not isinstance(self._loss, BuiltinLoss):
            entries["advantage_normalized"] = normalized(prepared.advantage)
        elif getattr(self._loss, "normalize_advantages", None) == "batch":
            entries["advantage"] = normalized(prepared.advantage)
        if prepared.weight is not None:
            entries["weight"] = prepared.weight
        if prepared.alpha is not None:
            entries["alpha"] = prepared.alpha
        return entries

    def _shuffle(self, entries: dict[str, Array], order: npt.NDArray[np.int64]) -> Minibatch:
        """The entries in this order, in buffers that the next call overwrites."""
        shapes = {name: rows.shape for name, rows in entries.items()}
        if {name: buffer.shape for name, buffer in self._buffers.items()} != shapes:
            self._buffers = self.minibatch(
                {name: np.empty(rows.shape, rows.dtype) for name, rows in entries.items()}
                if self.spread is None
                else self.spread.buffers(entries)
            )
        for name, rows in entries.items():
            # `clip` lets numpy write straight into `out`; the order has no index out of range.
            np.take(rows, order, axis=0, out=self._buffers[name].numpy(), mode="clip")
        return self._buffers

    def _normalize_minibatch(self, part: Minibatch) -> None:
        if isinstance(self._loss, PPOLoss) and self._loss.normalize_advantages == "minibatch":
            advantage = part["advantage"].numpy()
            np.copyto(advantage, normalized(advantage))

    def _self_check(self, part: Minibatch, version: int) -> dict[str, float]:
        """The log-ratio of entries of this version must be 0 before the first step."""
        if isinstance(self._loss, CloningLoss):
            return {}  # its actions are not those that were drawn
        with torch.no_grad():
            now = self._evaluate(part)[0].numpy()
        columns = self._columns(part)
        acted = columns["version"].numpy() == version
        return first_log_ratio(now, columns["logp"].numpy(), acted, version)

    def _evaluate(self, part: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values [N] of a mini-batch."""
        executed = [part["executed"]] if "executed" in part else []
        evaluate = policy_calls(self.module).evaluate
        return evaluate(observation_of(part), part["action"], *executed)

    def _columns(self, part: Minibatch) -> Minibatch:
        """The columns [N] of a mini-batch, in the order of `_evaluate`."""
        return part

    def _step(self, at: slice, part: Minibatch, sums: _Sums) -> bool:
        """One optimizer step, or none where the loss or its gradient is not finite.

        False, without a step, where the update is over because the policy went too far.
        """
        totals, finite = self._total_gradient(at, part)
        norm = self._adam.norm()
        if not (finite and np.isfinite(norm)):
            self.guard.skip(lambda: {name: rows.numpy().copy() for name, rows in part.items()})
            return True
        self.guard.step()
        target = self._loss.target_kl if isinstance(self._loss, PPOLoss) else None
        if target is not None:
            far = sum(float(parts["approx_kl"]) for parts in totals) > KL_ALLOWANCE * target
            sums.extra["stopped_early"] = float(far)
            if far:
                return False
        self._adam.step(norm)
        sums.add(totals, norm)
        return True

    def _total_gradient(self, at: slice, part: Minibatch) -> tuple[list[dict[str, Tensor]], bool]:
        """The gradients of all shards, added in their order; metrics by shard; all finite or not.

        A sum is the same whether its second part was added to zeros before or not.
        """
        cuts, spread = self.cuts(part), self.spread
        followers = 0 if spread is None else spread.followers
        if spread is not None and followers:
            spread.ask(at, progress=self._progress, parameters=self.parameters)
        totals: list[dict[str, Tensor]] = []
        all_finite = True
        for shard in shards_of(0, followers + 1, len(cuts)):
            parts, finite = self.shard_gradient(part, cuts[shard], fresh=shard == 0)
            all_finite = all_finite and finite
            totals.append(parts)
        if spread is not None and followers:
            for result in spread.answers(len(cuts)):
                self._adam.gradient.add_(torch.from_numpy(result.gradient))
                all_finite = all_finite and result.finite
                totals.append({n: torch.tensor(value) for n, value in result.metrics.items()})
        return totals, all_finite

    def _loss_of(self, shard: Minibatch, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The shard's part of the loss over `count` entries, and of the metrics."""
        if not isinstance(self._loss, BuiltinLoss):
            loss, parts = self._loss(self.module, shard)
            _check_loss(self._loss, loss)
            share = shard["logp"].numel() / count
            return loss * share, {name: torch.as_tensor(m) * share for name, m in parts.items()}
        return builtin_loss(self._loss, self._evaluate(shard), self._columns(shard), count)


class _Sums:
    """Sums of metrics over optimizer steps; kept as tensors, read once an update."""

    def __init__(self) -> None:
        self.extra: dict[str, float] = {}
        self._names: list[str] = []
        self._total: Tensor | None = None
        self._norm = 0.0
        self._steps = 0

    def add(self, shards: list[dict[str, Tensor]], norm: float) -> None:
        self._norm += norm
        self._steps += 1
        for parts in filter(None, shards):  # a loss of the user's own may report nothing
            values = torch.stack([part.detach().float() for part in parts.values()])
            if self._total is None:
                self._names, self._total = list(parts), values.double()
            else:
                self._total += values

    def means(self) -> dict[str, float]:
        """By name; only `extra` where every step was skipped."""
        if self._total is None:
            return dict(self.extra)
        means = dict(zip(self._names, (self._total / self._steps).tolist(), strict=True))
        return {**means, "grad_norm": self._norm / self._steps, **self.extra}


def observation_of(minibatch: Minibatch) -> Minibatch:
    """The observations of a mini-batch by their own names, as policies take them."""
    start = len(_OBSERVATION)
    return {n[start:]: rows for n, rows in minibatch.items() if n.startswith(_OBSERVATION)}


def _check_loss(function: Any, loss: Any) -> None:
    if not (isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad):
        raise BadInput(
            getattr(function, "__name__", "loss"),
            "returned no loss",
            expected="a tensor without axes that depends on the policy's parameters, and metrics",
            got=f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__,
        )
