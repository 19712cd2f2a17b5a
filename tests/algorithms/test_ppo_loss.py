"""The PPO loss against a case computed by hand, and its switches one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlinf_async.algorithms import PPOLoss
from rlinf_async.algorithms.losses_torch import ppo_loss


def terms(**changes):
    """Three entries with ratios 1.5, 0.5 and 1 and advantages 2, -1 and 3."""
    tensors = {
        "logp": torch.log(torch.tensor([1.5, 0.5, 1.0])),
        "entropy": torch.tensor([1.0, 2.0, 3.0]),
        "value": torch.tensor([1.0, 2.0, 3.0]),
        "logp_base": torch.zeros(3),
        "value_old": torch.tensor([0.0, 2.0, 3.0]),
        "advantage": torch.tensor([2.0, -1.0, 3.0]),
        "returns": torch.tensor([2.0, 2.0, 1.0]),
    }
    return {name: changes.get(name, tensor) for name, tensor in tensors.items()} | changes


def test_loss_of_three_entries_computed_by_hand():
    loss = PPOLoss(clip=0.2, value_weight=0.5, entropy_weight=0.1)
    total, parts = ppo_loss(loss, **terms())
    # max(-3, -2.4) = -2.4;  max(0.5, 0.8) = 0.8;  -3
    assert parts["policy_loss"].item() == pytest.approx((-2.4 + 0.8 - 3.0) / 3)
    assert parts["value_loss"].item() == pytest.approx((1 + 0 + 4) / 3)
    assert parts["entropy"].item() == pytest.approx(2.0)
    assert parts["clip_fraction"].item() == pytest.approx(2 / 3)
    kl = (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))
    assert parts["approx_kl"].item() == pytest.approx(kl / 3)
    assert total.item() == pytest.approx(-4.6 / 3 + 0.5 * 5 / 3 - 0.1 * 2.0)


def test_a_ratio_on_the_harmless_side_counts_as_not_clipped():
    # A > 0 with a small ratio, A < 0 with a large one: the unclipped term is the larger loss.
    _, parts = ppo_loss(
        PPOLoss(clip=0.2),
        **terms(logp=torch.log(torch.tensor([0.5, 1.5, 1.0]))),
    )
    assert parts["clip_fraction"].item() == 0.0
    assert parts["policy_loss"].item() == pytest.approx((-1.0 + 1.5 - 3.0) / 3)


def test_clip_high_moves_only_the_upper_limit():
    _, parts = ppo_loss(PPOLoss(clip=0.2, clip_high=0.4), **terms())
    assert parts["policy_loss"].item() == pytest.approx((-2.8 + 0.8 - 3.0) / 3)


def test_unclipped_loss_is_minus_advantage_times_ratio():
    _, parts = ppo_loss(PPOLoss(clip=None), **terms())
    assert parts["policy_loss"].item() == pytest.approx((-3.0 + 0.5 - 3.0) / 3)
    assert parts["clip_fraction"].item() == 0.0


def test_dual_clip_bounds_the_loss_of_bad_actions_only():
    large = torch.log(torch.tensor([1.5, 10.0, 1.0]))
    _, parts = ppo_loss(PPOLoss(clip=0.2, dual_clip=3.0), **terms(logp=large))
    assert parts["policy_loss"].item() == pytest.approx((-2.4 + 3.0 - 3.0) / 3)


def test_log_ratio_clamp_keeps_the_ratio_finite():
    extreme = torch.tensor([500.0, -500.0, 0.0])
    total, parts = ppo_loss(PPOLoss(clip=None, log_ratio_clamp=math.log(2)), **terms(logp=extreme))
    assert torch.isfinite(total)
    assert parts["policy_loss"].item() == pytest.approx((-4.0 + 0.5 - 3.0) / 3)


def test_value_clip_takes_the_larger_error_and_counts_before_clipping():
    _, parts = ppo_loss(PPOLoss(value_clip=0.5), **terms())
    # First entry: V 1 is clipped to 0.5, whose error (0.5 - 2)^2 is the larger one.
    assert parts["value_loss"].item() == pytest.approx((2.25 + 0 + 4) / 3)
    assert parts["value_clip_fraction"].item() == pytest.approx(1 / 3)


def test_sample_weights_scale_the_policy_loss_and_nothing_else():
    weight = torch.tensor([1.0, 0.0, 2.0])
    _, parts = ppo_loss(PPOLoss(clip=0.2), **terms(weight=weight))
    assert parts["policy_loss"].item() == pytest.approx((-2.4 + 0.0 - 6.0) / 3)
    assert parts["value_loss"].item() == pytest.approx(5 / 3)


def test_weights_of_one_change_no_bit():
    plain, _ = ppo_loss(PPOLoss(), **terms())
    weighted, _ = ppo_loss(PPOLoss(), **terms(weight=torch.ones(3)))
    assert plain.item() == weighted.item()


def test_shards_over_the_whole_steps_denominator_add_up():
    whole, whole_parts = ppo_loss(PPOLoss(entropy_weight=0.1), **terms())
    shards = []
    for at in (slice(0, 1), slice(1, 3)):
        cut = {name: tensor[at] for name, tensor in terms().items()}
        shards.append(ppo_loss(PPOLoss(entropy_weight=0.1), **cut, denominator=3))
    assert sum(loss.item() for loss, _ in shards) == pytest.approx(whole.item())
    for name, part in whole_parts.items():
        assert sum(parts[name].item() for _, parts in shards) == pytest.approx(part.item())


def test_clipped_entries_get_no_gradient():
    logp = torch.log(torch.tensor([1.5, 0.5, 1.0])).requires_grad_()
    total, _ = ppo_loss(PPOLoss(clip=0.2, value_weight=0.0), **terms(logp=logp))
    total.backward()
    np.testing.assert_allclose(logp.grad.numpy(), [0.0, 0.0, -1.0], atol=1e-7)
