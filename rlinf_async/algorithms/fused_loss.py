"""PPO's loss and its derivatives by log-prob and value, by hand, in numpy.

N entries of one mini-batch, all arrays float32 [N]. The loss is that of `losses.PPOLoss`; the torch
version in `losses_torch` is what its derivatives are tested against.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.losses import PPOLoss

Float32 = npt.NDArray[np.float32]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


def policy_part(
    loss: PPOLoss,
    logp: Float32,
    logp_base: Float32,
    advantage: Float32,
    weight: Float32 | None,
) -> tuple[Float32, tuple[float, float, float]]:
    """Derivative of the policy's loss by `logp`, and loss, approximate KL and clip fraction."""
    count = len(logp)
    log_ratio = logp - logp_base
    flat = None
    if loss.log_ratio_clamp is not None:
        flat = np.abs(log_ratio) > loss.log_ratio_clamp
        np.clip(log_ratio, -loss.log_ratio_clamp, loss.log_ratio_clamp, out=log_ratio)
    ratio = np.exp(log_ratio)
    np.subtract(ratio, log_ratio, out=log_ratio)
    kl = float(np.subtract(log_ratio, _ONE, out=log_ratio).sum()) / count
    # The gain A r is what the loss takes off; outside the trust region, on the side that the
    # advantage pushes to, it is bounded and has no slope.
    gain = kept = advantage * ratio
    slope = gain * np.float32(-1.0 / count)
    fraction = 0.0
    if loss.clip is not None:
        bound = np.minimum(np.maximum(ratio, np.float32(loss.low), out=ratio), loss.high, out=ratio)
        np.multiply(bound, advantage, out=bound)
        clipped = gain > bound
        np.copyto(slope, _ZERO, where=clipped)
        fraction = int(np.count_nonzero(clipped)) / count
        kept = np.minimum(gain, bound, out=bound)
    if loss.dual_clip is not None:
        floor = np.float32(loss.dual_clip) * advantage
        below = (advantage < 0) & (kept < floor)
        np.copyto(kept, floor, where=below)
        np.copyto(slope, _ZERO, where=below)
    if flat is not None:
        np.copyto(slope, _ZERO, where=flat)
    if weight is not None:
        kept, slope = kept * weight, slope * weight
    return slope, (-float(kept.sum()) / count, kl, fraction)


def value_part(
    loss: PPOLoss, value: Float32, value_old: Float32, returns: Float32
) -> tuple[Float32, float, float]:
    """Derivative by `value` of value_weight times the value loss; that loss; its clip fraction."""
    count = len(value)
    error = value - returns
    terms, slope, fraction = np.square(error), error, 0.0
    if loss.value_clip is not None:
        moved = value - value_old
        far = np.abs(moved) > loss.value_clip
        near_error = value_old + np.clip(moved, -loss.value_clip, loss.value_clip) - returns
        near_terms = np.square(near_error)
        worse = near_terms > terms
        # Where the clipped value is the worse one and is clipped, it does not move with V.
        slope = np.where(worse, np.where(far, np.float32(0.0), near_error), error)
        terms = np.maximum(terms, near_terms)
        fraction = int(np.count_nonzero(far)) / count
    scale = np.float32(2.0 * loss.value_weight / count)
    return slope * scale, float(terms.sum()) / count, fraction
