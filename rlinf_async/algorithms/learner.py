"""What every learner can do, and which one a configuration gets.

The choice depends on the configuration alone, never on a plan or a machine, so that a run gives the
same numbers wherever its parts are placed. Metrics of `update`, floats, means over all mini-batches
of all epochs where not said otherwise:

    policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm
    value_clip_fraction     only with a value clip
    learning_rate           of this update
    explained_variance      1 - var(return - value) / var(return) of the acting version's values
    stopped_early           1 if `target_kl` ended the update, else 0; only with it
    reference_kl            only with `kl_weight`
    imitated_entries        of behaviour cloning, which has no metrics of values and ratios
    skipped_steps           steps of this update left out for a non-finite loss or gradient
    first_log_ratio_max     largest |log-ratio| before the first step, over entries of this version;
                            absent where there are none
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import structlog

from rlinf_async.algorithms.advantages import Advantages, VTrace
from rlinf_async.algorithms.batching import Preparation
from rlinf_async.algorithms.losses import BuiltinLoss, CloningLoss, GroupLoss, PPOLoss
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.errors import BadInput, EngineError
from rlinf_async.execution.memory import state_shape
from rlinf_async.execution.spaces import Spaces

log = structlog.get_logger()

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Loss = BuiltinLoss | Callable[..., Any]
Lag = Literal["exact", "free"]

NON_FINITE_LIMIT = 10
"""The run stops after this many optimizer steps in a row whose loss or gradient was not finite."""


class Learner(Protocol):
    """Holds a policy's parameters and an optimizer's state, and turns a batch into an update."""

    name: str
    """`fused` or `torch`."""
    reason: str
    """Why this one, for the log."""
    guard: NonFiniteGuard
    """What became of steps that were not finite."""

    @property
    def parameters(self) -> Float32:
        """The live flat vector [P]; it changes with `update`."""
        ...

    def load(self, parameters: Float32) -> None:
        """Copy [P] in. The optimizer's state is left as it is."""
        ...

    def update(
        self,
        batch: Mapping[str, Array],
        *,
        statistics: Statistics,
        scales: Mapping[int, float],
        version: int,
        seed: int,
    ) -> dict[str, float]:
        """One iteration on batch n = `version`: advantages, epochs of mini-batches, metrics.

        Args:
            batch: segment fields side by side in cell order (see `batching.Preparation`).
            statistics: version n's, frozen over all epochs.
            scales: reward scale of each version that acted.
            seed: of the run; the order of entries follows from it, the version and the epoch.

        Raises EngineError after `NON_FINITE_LIMIT` steps in a row that were not finite.
        """
        ...

    def state(self) -> dict[str, Array]:
        """The optimizer's state, by copy, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        ...


class NonFiniteGuard:
    """Counts optimizer steps that were skipped because a loss or gradient was not finite."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._new = False
        self.skipped = 0
        """Over the learner's life."""
        self.minibatch: dict[str, Array] | None = None
        """Copy of the first offending mini-batch of the present row of them."""

    def skip(self, minibatch: Callable[[], dict[str, Array]]) -> None:
        """Count one skipped step; EngineError if it is one too many."""
        if self.in_a_row == 0:
            self.minibatch, self._new = minibatch(), True
        self.in_a_row += 1
        self.skipped += 1
        if self.in_a_row >= NON_FINITE_LIMIT:
            error = EngineError(
                f"the loss or its gradient was not finite in {self.in_a_row} optimizer steps in a "
                "row; look for NaN in observations and rewards, or lower the learning rate"
            )
            error.add_note(_describe_non_finite(self.minibatch or {}))
            raise error

    def take_minibatch(self) -> dict[str, Array] | None:
        """The kept mini-batch if it was not taken before, so that it is written down once."""
        new, self._new = self._new, False
        return self.minibatch if new else None

    def step(self) -> None:
        """A step was taken: the row of skipped ones, if any, is over."""
        self.in_a_row = 0


def make_learner(
    policy: Any,
    spaces: Spaces,
    *,
    loss: Loss,
    optimizer: Adam,
    advantages: Advantages,
    epochs: int,
    minibatch: int,
    normalize: bool,
    iterations: int,
    max_lag: int = 0,
    lag: Lag = "exact",
    shards: int = 1,
) -> Learner:
    """The learner for a configuration: `fused` for built-in policies and losses, else `torch`.

    Args:
        policy: a built-in record, or a torch module with `evaluate` and `value`.
        loss: a built-in record, or a named function `(module, minibatch) -> (loss, metrics)`.
        minibatch: entries of one optimizer step.
        iterations: of the whole run, for schedules.
        shards: parts in which a mini-batch's gradient is computed, added in order; part of the
            configuration because it changes the last bits.

    Raises BadInput for a combination that cannot be right.
    """
    check_training(
        loss=loss,
        optimizer=optimizer,
        advantages=advantages,
        epochs=epochs,
        minibatch=minibatch,
        iterations=iterations,
        max_lag=max_lag,
        lag=lag,
        shards=shards,
    )
    arguments = {
        "loss": loss,
        "optimizer": optimizer,
        "advantages": advantages,
        "epochs": epochs,
        "minibatch": minibatch,
        "normalize": normalize,
        "iterations": iterations,
    }
    obstacle = why_not_fused(policy, loss, shards=shards, chunk=spaces.chunk, optimizer=optimizer)
    if isinstance(loss, PPOLoss) and loss.correction == "interpolate":
        log.info("approximate_correction", correction="interpolate")
    return _make(policy, spaces, obstacle, shards, arguments)


def preparation(
    loss: Loss, advantages: Advantages, *, normalized: bool, joined: bool
) -> Preparation:
    """How batches become entries under this configuration."""
    decoupled = None
    if isinstance(loss, PPOLoss) and loss.correction == "decoupled":
        decoupled = (loss.weight_cap, loss.cap)
    return Preparation(
        advantages=advantages,
        normalized=normalized,
        joined=joined,
        decoupled=decoupled,
        interpolated=isinstance(loss, PPOLoss) and loss.correction == "interpolate",
    )


def why_not_fused(
    policy: Any, loss: Loss, *, shards: int = 1, chunk: int = 1, optimizer: Adam | None = None
) -> str | None:
    """The first reason why the fused learner does not apply, or None."""
    if not hasattr(policy, "to_kernel"):
        return f"{type(policy).__name__} is no built-in policy"
    if not isinstance(loss, PPOLoss):
        kind = type(loss).__name__
        return f"{kind} is not PPOLoss" if isinstance(loss, BuiltinLoss) else _own_loss(loss)
    for switch in ("value_huber", "kl", "target_kl"):
        if getattr(loss, switch) is not None:
            return f"PPOLoss has {switch}"
    if loss.correction == "interpolate":
        return "PPOLoss has correction='interpolate'"
    if optimizer is not None and not optimizer.is_plain:
        return "Adam has weight decay, groups or an average"
    if shards != 1:
        return f"the gradient is computed in {shards} shards"
    if chunk != 1:
        return f"actions come in chunks of {chunk}"
    return None


def _own_loss(loss: Any) -> str:
    return f"{getattr(loss, '__name__', loss)} is no built-in loss"


def check_training(
    *,
    loss: Any,
    optimizer: Any,
    advantages: Any,
    epochs: int,
    minibatch: int,
    iterations: int,
    max_lag: int = 0,
    lag: str = "exact",
    shards: int = 1,
) -> None:
    """BadInput for a training configuration that cannot be right; needs no policy and no torch."""
    who = "train"
    counts = {
        "epochs": epochs,
        "minibatch": minibatch,
        "iterations": iterations,
        "shards": shards,
    }
    for name, count in counts.items():
        if count < 1:
            raise BadInput(who, name, expected=">= 1", got=count)
    if shards > minibatch:
        raise BadInput(who, "more shards than entries", expected=f"<= {minibatch}", got=shards)
    if not isinstance(optimizer, Adam):
        raise BadInput(who, "optimizer", expected="Adam(...)", got=repr(optimizer))
    if not isinstance(advantages, Advantages):
        known = "gae(...), vtrace(...), n_step(...) or raw_returns(...)"
        raise BadInput(who, "advantages", expected=known, got=repr(advantages))
    _check_loss_kind(loss, advantages)
    _check_lag(loss, advantages, max_lag, lag)


def _check_loss_kind(loss: Any, advantages: Advantages) -> None:
    who = "train"
    if isinstance(loss, GroupLoss):
        raise BadInput(
            who,
            "GroupLoss compares whole episodes, and a segment may hold a part of one",
            expected="PPOLoss(...), PolicyGradientLoss(...) or CloningLoss(...)",
            fix="use pipe.rollout(episodes=Episodes(...))",
        )
    if not isinstance(loss, BuiltinLoss) and not callable(loss):
        expected = "PPOLoss(...), another built-in loss, or a named function"
        raise BadInput(who, "loss", expected=expected, got=repr(loss))
    if isinstance(loss, CloningLoss) and isinstance(advantages, VTrace):
        raise BadInput(who, "V-trace has no effect on CloningLoss", fix="give raw_returns(...)")


def explained_variance(value: Float32, returns: Float32) -> float:
    """1 - var(return - value) / var(return), 0 where the returns are all equal."""
    spread = float(np.var(returns, dtype=np.float64))
    if spread == 0.0:
        return 0.0
    return 1.0 - float(np.var(returns - value, dtype=np.float64)) / spread


def _make(
    policy: Any, spaces: Spaces, obstacle: str | None, shards: int, arguments: dict[str, Any]
) -> Learner:
    learner: Learner
    if obstacle is None:
        from rlinf_async.algorithms.fused_learner import FusedLearner

        learner = FusedLearner(policy, spaces, **arguments)
        learner.reason = f"{type(policy).__name__} and PPOLoss have analytic gradients"
    elif isinstance(arguments["loss"], CloningLoss) and not state_shape(policy):
        from rlinf_async.algorithms.imitation_learner import ImitationLearner

        learner = ImitationLearner(policy, spaces=spaces, shards=shards, **arguments)
        learner.reason = obstacle
    elif state_shape(policy):
        from rlinf_async.algorithms.recurrent_learner import RecurrentLearner

        _check_recurrent(arguments)
        learner = RecurrentLearner(policy, shards=shards, **arguments)
        learner.reason = f"{obstacle}, and it remembers"
    else:
        from rlinf_async.algorithms.torch_learner import TorchLearner

        learner = TorchLearner(policy, shards=shards, **arguments)
        learner.reason = obstacle
    return learner


def _check_recurrent(arguments: Mapping[str, Any]) -> None:
    """BadInput for what needs log-probs or values of single entries without their history."""
    loss, advantages = arguments["loss"], arguments["advantages"]
    decoupled = isinstance(loss, PPOLoss) and loss.correction == "decoupled"
    if isinstance(loss, CloningLoss) and (loss.demonstrations is not None or loss.keep != 1):
        raise BadInput(
            "train",
            "a policy that remembers imitates whole sequences of the present batch only",
            expected="CloningLoss(keep=1) without demonstrations",
        )
    if isinstance(loss, PPOLoss) and loss.kl is not None:
        raise BadInput(
            "train",
            "the distance to the first policy needs entries without their history",
            expected="PPOLoss without kl",
            got=f"kl={loss.kl!r}",
        )
    if decoupled or isinstance(advantages, VTrace):
        raise BadInput(
            "train",
            "corrections for lag recompute single entries, and this policy remembers",
            expected="PPOLoss(clip=...) without correction, and gae(...)",
            got="vtrace(...)" if isinstance(advantages, VTrace) else "correction='decoupled'",
        )


def _check_lag(loss: Any, advantages: Advantages, max_lag: int, lag: str) -> None:
    who = "train"
    if max_lag < 0:
        raise BadInput(who, "max_lag", expected=">= 0", got=max_lag)
    if lag not in ("exact", "free"):
        raise BadInput(who, "lag", expected="'exact' or 'free'", got=repr(lag))
    decoupled = isinstance(loss, PPOLoss) and loss.correction is not None
    if decoupled and isinstance(advantages, VTrace):
        raise BadInput(
            who,
            "V-trace and the decoupled loss both correct for the same lag",
            fix="use vtrace(...) without correction, or gae(...) with it",
        )
    corrected = decoupled or isinstance(advantages, VTrace)
    if max_lag == 0 or corrected or isinstance(loss, CloningLoss):
        return
    fix = "give PPOLoss(correction='decoupled') or advantages=vtrace(...)"
    if lag == "free":
        raise BadInput(who, f"free lag with max_lag={max_lag} needs a correction", fix=fix)
    if isinstance(loss, BuiltinLoss) and getattr(loss, "clip", None) is None:
        raise BadInput(
            who,
            f"an unclipped loss on data that is {max_lag} versions old",
            fix=f"{fix}, or a clip",
        )


def _describe_non_finite(minibatch: Mapping[str, Array]) -> str:
    found = [
        f"{name}: {int(np.count_nonzero(~np.isfinite(values)))} of {values.size} not finite"
        for name, values in minibatch.items()
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all()
    ]
    return "first such mini-batch: " + ("; ".join(found) or "all its entries are finite")
