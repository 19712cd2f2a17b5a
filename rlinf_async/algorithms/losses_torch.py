"""The built-in loss in torch, as a pure function. Imported only where torch is wanted.

N entries of a mini-batch, or of one shard of it. Every tensor is float32 [N].
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_async.algorithms.losses import PPOLoss


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
    denominator: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The total loss, a scalar with gradient, and its parts, scalars without.

    Args:
        logp, entropy, value: of the policy in training, with gradient.
        logp_base: the ratio's denominator: of the version that acted, or (decoupled, V-trace) of
            the version that is trained before its first step.
        value_old: what the value clip is centred on.
        advantage: normalised already, if it shall be.
        weight: of each entry in the policy's loss (decoupled correction); None is 1.
        denominator: entries of the whole optimizer step; None is N. All sums are divided by it,
            the parts too, so the shards of a step add up.
    """
    count = len(logp) if denominator is None else denominator
    log_ratio = logp - logp_base
    if loss.log_ratio_clamp is not None:
        log_ratio = log_ratio.clamp(-loss.log_ratio_clamp, loss.log_ratio_clamp)
    ratio = log_ratio.exp()
    surrogate = policy_terms(loss, ratio, advantage)
    if weight is not None:
        surrogate = surrogate * weight
    policy_loss = surrogate.sum() / count
    value_loss = value_terms(loss, value, value_old, returns).sum() / count
    total = policy_loss + loss.value_weight * value_loss
    entropy_mean = entropy.sum() / count
    if loss.entropy_weight:
        total = total - loss.entropy_weight * entropy_mean
    parts = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy_mean.detach(),
    }
    with torch.no_grad():
        clipped = ((advantage > 0) & (ratio > loss.high)) | ((advantage < 0) & (ratio < loss.low))
        parts["approx_kl"] = (ratio - 1.0 - log_ratio).sum() / count
        parts["clip_fraction"] = clipped.sum() / count
        if loss.value_clip is not None:
            far = (value - value_old).abs() > loss.value_clip
            parts["value_clip_fraction"] = far.sum() / count
    return total, parts


def policy_terms(loss: PPOLoss, ratio: Tensor, advantage: Tensor) -> Tensor:
    """max(-A r, -A clip(r)), and with the dual clip at most -c A where A < 0; [N]."""
    terms = -advantage * ratio
    if loss.clip is not None:
        terms = torch.maximum(terms, -advantage * ratio.clamp(loss.low, loss.high))
    if loss.dual_clip is not None:
        bounded = torch.minimum(terms, -loss.dual_clip * advantage)
        terms = torch.where(advantage < 0, bounded, terms)
    return terms


def value_terms(loss: PPOLoss, value: Tensor, value_old: Tensor, returns: Tensor) -> Tensor:
    """(V - return)^2, with the value clip the larger of it and that of the clipped V; [N]."""
    terms = (value - returns).square()
    if loss.value_clip is not None:
        near = value_old + (value - value_old).clamp(-loss.value_clip, loss.value_clip)
        terms = torch.maximum(terms, (near - returns).square())
    return terms
