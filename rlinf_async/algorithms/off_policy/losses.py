"""Targets and losses of the off-policy algorithms, as functions of tensors.

Axes: E critics, N samples, A action components. All float32; targets carry no gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from rlinf_async.models.squashed import LOG_STD_MAX, LOG_STD_MIN

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


def squashed_sample(output: Tensor, noise_NA: Tensor) -> tuple[Tensor, Tensor]:
    """Actions [N, A] in (-1, 1) and log-probs [N] from outputs [N, 2A] and standard normals.

    logp = sum log N(u) - sum 2 (log 2 - u - softplus(-2 u)), u before the tanh.
    """
    mean, log_std = output.chunk(2, dim=1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    u = torch.addcmul(mean, log_std.exp(), noise_NA)
    # The normal's log-prob is constant in the mean where the sample is reparametrised.
    constant = -0.5 * noise_NA.square().sum(1) - noise_NA.shape[1] * (_HALF_LOG_TAU + 2.0 * _LOG_2)
    logp = constant + (2.0 * (u + softplus(-2.0 * u)) - log_std).sum(1)
    return torch.tanh(u), logp


def squashed_logp(output: Tensor, action_NA: Tensor) -> Tensor:
    """Log-probs [N] of given actions in [-1, 1] under outputs [N, 2A]."""
    mean, log_std = output.chunk(2, dim=1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    u = torch.atanh(action_NA.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
    normal = -0.5 * ((u - mean) * torch.exp(-log_std)).square() - log_std - _HALF_LOG_TAU
    return (normal - 2.0 * (_LOG_2 - u - softplus(-2.0 * u))).sum(1)


def soft_target(
    reward_N: Tensor, discount_N: Tensor, next_EN: Tensor, logp_N: Tensor, alpha: float
) -> Tensor:
    """y = R + gamma^h (1 - term) (min_j Qt_j(s', a') - alpha log pi(a'|s')), [N].

    `discount_N` is gamma^h (1 - term) (Haarnoja et al., 2018, equation 3; the minimum of Fujimoto
    et al., 2018).
    """
    soft_N = next_EN.amin(0) - alpha * logp_N
    return torch.addcmul(reward_N, discount_N, soft_N).detach()


def critic_loss(q_EN: Tensor, target_N: Tensor, weight_N: Tensor | None = None) -> Tensor:
    """Half the squared error, summed over critics, averaged over the samples.

    `weight_N` corrects for prioritised sampling; None: 1.
    """
    squared_EN = (q_EN - target_N).square()
    if weight_N is not None:
        squared_EN = squared_EN * weight_N
    return 0.5 * squared_EN.sum() / q_EN.shape[1]


def actor_loss(logp_N: Tensor, q_EN: Tensor, alpha: float, *, mean: bool) -> Tensor:
    """mean(alpha log pi - Q), Q the minimum over critics, or their `mean` (REDQ)."""
    q_N = q_EN.mean(0) if mean else q_EN.amin(0)
    return (alpha * logp_N - q_N).mean()


def temperature_gradient(logp_N: Tensor, target_entropy: float) -> float:
    """The derivative by log alpha of L = -log_alpha * mean(log pi + H)."""
    return -float(logp_N.mean()) - target_entropy


def smoothed_action(
    action_NA: Tensor, noise_NA: Tensor, *, deviation: Tensor, clip: Tensor
) -> Tensor:
    """clip(mu + clip(deviation * noise, +-clip), -1, 1) (Fujimoto et al., 2018, equation 14).

    Deviation and clip [A] are of the action scaled to [-1, 1].
    """
    moved = torch.minimum(torch.maximum(noise_NA * deviation, -clip), clip)
    return (action_NA + moved).clamp(-1.0, 1.0)


def expectile_loss(u_N: Tensor, expectile: float) -> Tensor:
    """mean |tau - 1(u < 0)| u^2 (Kostrikov et al., 2022, equation 5)."""
    share_N = torch.where(u_N < 0, 1.0 - expectile, expectile)
    return (share_N * u_N.square()).mean()


def advantage_weights(u_N: Tensor, *, beta: float, cap: float) -> Tensor:
    """min(exp(beta u), cap) without gradient (Kostrikov et al., 2022, equation 7)."""
    return (beta * u_N).exp().clamp(max=cap).detach()
