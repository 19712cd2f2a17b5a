"""The analytic derivatives of PPO's loss against autograd of the torch version, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.algorithms import PPOLoss
from rlinf_async.algorithms.fused_loss import policy_part, value_part
from rlinf_async.algorithms.losses_torch import ppo_loss

LOSSES = st.builds(
    PPOLoss,
    clip=st.sampled_from([0.1, 0.2, 0.5]),
    clip_high=st.sampled_from([None, 0.28, 0.4]),
    dual_clip=st.sampled_from([None, 1.5, 3.0]),
    value_weight=st.sampled_from([0.5, 1.0]),
    value_clip=st.sampled_from([None, 0.2]),
    log_ratio_clamp=st.sampled_from([None, 0.3, 2.0]),
) | st.just(PPOLoss(clip=None))


def entries(count, seed):
    rng = np.random.default_rng(seed)
    base = rng.normal(-3.0, 1.0, count)
    names = {
        "logp": base + rng.normal(0.0, 0.5, count),
        "logp_base": base,
        "advantage": rng.normal(size=count) * (rng.random(count) > 0.1),
        "value": rng.normal(size=count),
        "value_old": rng.normal(size=count),
        "returns": rng.normal(size=count),
        "weight": rng.random(count) * 2.0,
    }
    return {name: column.astype(np.float32) for name, column in names.items()}


@given(LOSSES, st.integers(1, 40), st.integers(0, 10_000), st.booleans())
def test_slopes_and_parts_equal_autograd(loss, count, seed, weighted):
    columns = entries(count, seed)
    weight = columns.pop("weight")
    weight = weight if weighted else None
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    for name in ("logp", "value"):
        tensors[name].requires_grad_()
    total, parts = ppo_loss(
        loss,
        entropy=torch.zeros(count),
        weight=None if weight is None else torch.tensor(weight),
        **tensors,
    )
    total.backward()
    slope, (policy_loss, kl, clipped) = policy_part(
        loss, columns["logp"], columns["logp_base"], columns["advantage"], weight
    )
    value_slope, value_loss, far = value_part(
        loss, columns["value"], columns["value_old"], columns["returns"]
    )
    close = {"rtol": 2e-4, "atol": 2e-6}
    np.testing.assert_allclose(slope, tensors["logp"].grad, **close)
    np.testing.assert_allclose(value_slope, tensors["value"].grad, **close)
    np.testing.assert_allclose(policy_loss, parts["policy_loss"], **close)
    np.testing.assert_allclose(value_loss, parts["value_loss"], **close)
    np.testing.assert_allclose(kl, parts["approx_kl"], rtol=1e-3, atol=1e-5)
    assert clipped == pytest.approx(float(parts["clip_fraction"]))
    if loss.value_clip is not None:
        assert far == pytest.approx(float(parts["value_clip_fraction"]))


def test_three_entries_by_hand():
    # ratios 1.5, 0.5, 1 with advantages 1, 1, -2 and clip 0.2:
    #   entry 0 is clipped (loss -1.2, slope 0), entry 1 is not (loss -0.5, slope -0.5),
    #   entry 2 neither (loss 2, slope 2); all divided by 3.
    logp = np.log(np.array([1.5, 0.5, 1.0], np.float32))
    advantage = np.array([1.0, 1.0, -2.0], np.float32)
    slope, (policy_loss, _, clipped) = policy_part(
        PPOLoss(clip=0.2), logp, np.zeros(3, np.float32), advantage, None
    )
    np.testing.assert_allclose(slope, [0.0, -0.5 / 3, 2.0 / 3], atol=1e-6)
    assert policy_loss == pytest.approx((-1.2 - 0.5 + 2.0) / 3, abs=1e-6)
    assert clipped == pytest.approx(1 / 3)
