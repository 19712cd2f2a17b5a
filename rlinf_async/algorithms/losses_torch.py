"""The built-in losses in torch, as pure functions. Imported only where torch is wanted.

N entries of a mini-batch, or of one shard of it; C actions of a chunk, D their components. Every
tensor is float32 [N] where not said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from rlinf_async.algorithms.losses import (
    BuiltinLoss,
    CloningLoss,
    GroupLoss,
    PolicyGradientLoss,
    PPOLoss,
    number,
)
from rlinf_async.algorithms.schedules import Schedule

Parts = dict[str, Tensor]

EXPONENT_LIMIT = 20.0
"""The exponent of k3 is kept within +- this."""


def builtin_loss(
    loss: BuiltinLoss,
    evaluated: tuple[Tensor, Tensor, Tensor],
    columns: Mapping[str, Tensor],
    denominator: int,
) -> tuple[Tensor, Parts]:
    """The loss of a record: total and parts.

    Args:
        evaluated: log-probs, entropies and values of the policy in training.
        columns: of the mini-batch, by the names that `torch_learner` gives them.
        denominator: entries of the whole optimizer step.
    """
    logp, entropy, value = evaluated
    if isinstance(loss, CloningLoss):
        return cloning_loss(loss, logp=logp, entropy=entropy, denominator=denominator)
    shared = {"logp": logp, "entropy": entropy, "value": value}
    estimated = {"advantage": columns["advantage"], "returns": columns["return"]}
    if isinstance(loss, PolicyGradientLoss):
        return policy_gradient_loss(loss, **shared, **estimated, denominator=denominator)
    return ppo_loss(
        loss,
        **shared,
        **estimated,
        logp_base=columns["logp_base"],
        value_old=columns["value"],
        weight=columns.get("weight"),
        alpha=columns.get("alpha"),
        logp_reference=columns.get("logp_reference"),
        denominator=denominator,
    )


def ppo_loss(
    loss: PPOLoss,
    *,
    logp: Tensor,
    entropy: Tensor,
    value: Tensor,
    logp_base: Tensor,
    value_old: Tensor,
    advantage: Tensor,
    returns: Tensor,
    weight: Tensor | None = None,
    alpha: Tensor | None = None,
    logp_reference: Tensor | None = None,
    denominator: int | None = None,
) -> tuple[Tensor, Parts]:
    """The total loss, a scalar with gradient, and its parts, scalars without.

    Args:
        logp, entropy, value: of the policy in training, with gradient.
        logp_base: the ratio's denominator: of the version that acted, or (decoupled, V-trace) of
            the version that is trained before its first step.
        value_old: what the value clip is centred on.
        advantage: normalised already, if it shall be.
        weight: of each entry in the policy's loss (decoupled correction); None is 1.
        alpha: where between acting and present version the clip is centred (`interpolate`).
        logp_reference: of the policy that the run began with; only with `kl_weight`.
        denominator: entries of the whole optimizer step; None is N. All sums are divided by it,
            the parts too, so the shards of a step add up.
    """
    count = len(logp) if denominator is None else denominator
    if alpha is not None:
        behaviour = logp_base
        logp_base = (behaviour + alpha * (logp - behaviour)).detach()
        weight = importance_weights(logp_base - behaviour, loss.weight_cap, loss.cap)
    log_ratio = clamped(logp - logp_base, loss.log_ratio_clamp)
    ratio = log_ratio.exp()
    surrogate = policy_terms(loss, ratio, advantage)
    if weight is not None:
        surrogate = surrogate * weight
    policy_loss = surrogate.sum() / count
    value_loss = value_terms(loss, value, value_old, returns).sum() / count
    total = policy_loss + loss.value_weight * value_loss
    entropy_mean = entropy.sum() / count
    total = total - entropy_bonus(loss.entropy_weight, entropy_mean)
    parts = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy_mean.detach(),
    }
    if loss.kl is not None:
        assert logp_reference is not None, "kl_weight without a reference"
        kl_mean = (kl_terms(loss.kl, logp, logp_reference) * ratio).sum() / count
        total = total + loss.kl_weight * kl_mean
        parts["reference_kl"] = kl_mean.detach()
    with torch.no_grad():
        parts["approx_kl"] = (ratio - 1.0 - log_ratio).sum() / count
        parts["clip_fraction"] = clipped(loss, ratio, advantage).sum() / count
        if loss.value_clip is not None:
            parts["value_clip_fraction"] = moved_far(value, value_old, loss.value_clip) / count
    return total, parts


def policy_gradient_loss(
    loss: PolicyGradientLoss,
    *,
    logp: Tensor,
    entropy: Tensor,
    value: Tensor,
    advantage: Tensor,
    returns: Tensor,
    denominator: int | None = None,
) -> tuple[Tensor, Parts]:
    """-A log pi and the value loss: total and parts; arguments as in `ppo_loss`."""
    count = len(logp) if denominator is None else denominator
    policy_loss = -(advantage * logp).sum() / count
    error = value - returns
    value_loss = error_terms(error, loss.value_huber).sum() / count
    entropy_mean = entropy.sum() / count
    total = policy_loss + loss.value_weight * value_loss
    total = total - entropy_bonus(loss.entropy_weight, entropy_mean)
    return total, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy_mean.detach(),
    }


def cloning_loss(
    loss: CloningLoss, *, logp: Tensor, entropy: Tensor, denominator: int | None = None
) -> tuple[Tensor, Parts]:
    """-log pi of the given actions: total and parts; arguments as in `ppo_loss`."""
    count = len(logp) if denominator is None else denominator
    total = policy_loss = -logp.sum() / count
    entropy_mean = entropy.sum() / count
    total = total - entropy_bonus(loss.entropy_weight, entropy_mean)
    return total, {"policy_loss": policy_loss.detach(), "entropy": entropy_mean.detach()}


def group_loss(
    loss: GroupLoss,
    *,
    logp: Tensor,
    entropy: Tensor,
    logp_base: Tensor,
    advantage: Tensor,
    reduction: Tensor,
    logp_engine: Tensor | None = None,
    logp_reference: Tensor | None = None,
) -> tuple[Tensor, Parts]:
    """The clipped loss of whole episodes' entries: total with gradient, and parts without.

    Args:
        advantage: of each entry's episode.
        reduction: weight of each entry, from `reductions.reduction_weights`; entries that are not
            valid have 0, and count for nothing whatever stands there.
        logp_engine: of the engine that sampled, where it computes other bits than the trainer.
        logp_reference: of the reference policy; only with `kl_weight`.
    """
    kept = reduction != 0
    # Masked entries are replaced before the exponential: infinity times 0 would be NaN.
    log_ratio = torch.where(kept, logp - logp_base, 0.0)
    log_ratio = clamped(log_ratio, loss.log_ratio_clamp)
    ratio = log_ratio.exp()
    terms = policy_terms(loss, ratio, torch.where(kept, advantage, 0.0))
    if loss.engine_weight_cap is not None:
        assert logp_engine is not None, "engine_weight_cap without the engine's log-probs"
        drift = torch.where(kept, logp_base - logp_engine, 0.0).detach()
        terms = terms * importance_weights(drift, loss.engine_weight_cap, "truncate")
    total = policy_loss = (terms * reduction).sum()
    entropy_mean = (torch.where(kept, entropy, 0.0) * reduction).sum()
    total = total - entropy_bonus(loss.entropy_weight, entropy_mean)
    parts = {"policy_loss": policy_loss.detach(), "entropy": entropy_mean.detach()}
    if loss.kl is not None:
        assert logp_reference is not None, "kl_weight without a reference"
        here = torch.where(kept, logp, 0.0)
        distance = kl_terms(loss.kl, here, torch.where(kept, logp_reference, 0.0)) * ratio
        kl_mean = (distance * reduction).sum()
        total = total + loss.kl_weight * kl_mean
        parts["reference_kl"] = kl_mean.detach()
    with torch.no_grad():
        parts["approx_kl"] = ((ratio - 1.0 - log_ratio) * reduction).sum()
        parts["clip_fraction"] = (clipped(loss, ratio, advantage) * reduction).sum()
    return total, parts


def aggregated(
    logp: Tensor, valid: Tensor | None, level: Literal["token", "action", "chunk"]
) -> Tensor:
    """Log-probs [N, C, D] at the level that ratios are taken at; masked entries are 0.

        token    [N, C, D], as they are
        action   [N, C], summed over D
        chunk    [N], summed over C and D

    The ratio is the exponential of this sum, not a mean of ratios. Entropies go the same way.
    `valid` bool, [N, C] or [N, C, D].
    """
    if valid is not None:
        mask = valid if valid.ndim == logp.ndim else valid.unsqueeze(-1)
        logp = torch.where(mask, logp, 0.0)
    if level == "token":
        return logp
    return logp.sum(dim=-1 if level == "action" else (-2, -1))


def policy_terms(loss: PPOLoss | GroupLoss, ratio: Tensor, advantage: Tensor) -> Tensor:
    """max(-A r, -A clip(r)), and with the dual clip at most -c A where A < 0; [N]."""
    terms = -advantage * ratio
    if loss.clip is not None:
        terms = torch.maximum(terms, -advantage * ratio.clamp(loss.low, loss.high))
    if loss.dual_clip is not None:
        bounded = torch.minimum(terms, -loss.dual_clip * advantage)
        terms = torch.where(advantage < 0, bounded, terms)
    return terms


def value_terms(loss: PPOLoss, value: Tensor, value_old: Tensor, returns: Tensor) -> Tensor:
    """(V - return)^2 or Huber's, with the value clip the larger of it and the clipped V's; [N]."""
    terms = error_terms(value - returns, loss.value_huber)
    if loss.value_clip is not None:
        near = value_old + (value - value_old).clamp(-loss.value_clip, loss.value_clip)
        terms = torch.maximum(terms, error_terms(near - returns, loss.value_huber))
    return terms


def error_terms(error: Tensor, huber: float | None) -> Tensor:
    """e^2, and beyond |e| = h the line h (2 |e| - h) that continues it; [N]."""
    if huber is None:
        return error.square()
    return torch.where(error.abs() <= huber, error.square(), huber * (2.0 * error.abs() - huber))


def kl_terms(kl: Literal["k1", "k2", "k3"], logp: Tensor, logp_reference: Tensor) -> Tensor:
    """Estimates of KL(policy || reference) from its own samples (Schulman, 2020); [N].

    With x = logp - logp_reference: k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x. As a loss, k1's
    expected gradient is 0; k2's is that of the KL, on samples of the policy itself; samples of
    other versions are weighed with the ratio.
    """
    x = logp - logp_reference
    if kl == "k1":
        return x
    if kl == "k2":
        return x.square() / 2.0
    return (-x).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).exp() - 1.0 + x


def importance_weights(
    log_ratio: Tensor, weight_cap: float, cap: Literal["truncate", "drop"]
) -> Tensor:
    """exp(log_ratio) without gradient, and above `weight_cap` the cap or (`drop`) 0; [N]."""
    weight = log_ratio.detach().clamp(max=80.0).exp()
    if cap == "truncate":
        return weight.clamp(max=weight_cap)
    return torch.where(weight > weight_cap, 0.0, weight)


def entropy_bonus(weight: float | Schedule, entropy_mean: Tensor) -> Tensor | float:
    """What the loss is lowered by; exactly nothing where the weight is 0."""
    return number(weight) * entropy_mean if weight else 0.0


def moved_far(value: Tensor, value_old: Tensor, limit: float) -> Tensor:
    """How many values are further than `limit` from the old ones, before any clipping."""
    return ((value - value_old).abs() > limit).sum()


def clamped(log_ratio: Tensor, limit: float | None) -> Tensor:
    """`log_ratio` within +- `limit`, if there is one."""
    return log_ratio if limit is None else log_ratio.clamp(-limit, limit)


def clipped(loss: PPOLoss | GroupLoss, ratio: Tensor, advantage: Tensor) -> Tensor:
    """Whether an entry's ratio is out of bounds on the side that its advantage pushes to; [N]."""
    return ((advantage > 0) & (ratio > loss.high)) | ((advantage < 0) & (ratio < loss.low))
