"""Losses against loops over their definitions, hand-computed cases, and their refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms import (
    Adam,
    CloningLoss,
    GroupLoss,
    PolicyGradientLoss,
    PPOLoss,
    dapo,
    dr_grpo,
    gae,
    grpo,
    linear,
    vtrace,
)
from rlinf_async.algorithms.learner import check_training
from rlinf_async.algorithms.losses_torch import (
    aggregated,
    cloning_loss,
    error_terms,
    group_loss,
    importance_weights,
    kl_terms,
    policy_gradient_loss,
    ppo_loss,
)
from rlinf_async.algorithms.reductions import reduction_weights
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe, rebuild


@st.composite
def group_entries(draw):
    """Columns of episodes of several lengths, some of whose entries are masked."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    episode = np.repeat(np.arange(len(lengths)), lengths)
    count = len(episode)
    columns = {
        name: torch.from_numpy(rng.normal(-1, 0.7, count).astype(np.float32))
        for name in ("logp", "entropy", "logp_base", "logp_engine", "logp_reference")
    }
    columns["advantage"] = torch.from_numpy(
        rng.standard_normal(len(lengths)).astype(np.float32)[episode]
    )
    valid = rng.random(count) < draw(st.sampled_from([0.5, 1.0]))
    return episode, valid, columns


GROUP_LOSSES = [
    grpo(clip=0.2, kl_weight=0.1),
    dr_grpo(length_limit=6, dual_clip=2.0),
    dapo(entropy_weight=0.05, log_ratio_clamp=0.5),
    GroupLoss(engine_weight_cap=1.5, kl_weight=0.2, kl="k2", reduction="mean"),
]


def slow_group_loss(loss, episode, valid, columns):
    """One entry after the other, each episode's sum divided as its reduction says."""
    col = {name: [float(each) for each in values] for name, values in columns.items()}
    entries = [i for i in range(len(valid)) if valid[i]]
    episodes = {episode[i] for i in entries}
    total = 0.0
    for i in entries:
        x = col["logp"][i] - col["logp_base"][i]
        if loss.log_ratio_clamp is not None:
            x = max(-loss.log_ratio_clamp, min(loss.log_ratio_clamp, x))
        ratio, a = math.exp(x), col["advantage"][i]
        bounded = min(max(ratio, loss.low), loss.high)
        term = max(-a * ratio, -a * bounded)
        if loss.dual_clip is not None and a < 0:
            term = min(term, -loss.dual_clip * a)
        if loss.engine_weight_cap is not None:
            drift = math.exp(col["logp_base"][i] - col["logp_engine"][i])
            term *= min(drift, loss.engine_weight_cap)
        if loss.kl is not None:
            d = col["logp"][i] - col["logp_reference"][i]
            distance = d * d / 2 if loss.kl == "k2" else math.exp(-d) - 1 + d
            term += loss.kl_weight * distance * ratio
        term -= loss.entropy_weight * col["entropy"][i]
        mates = sum(1 for j in entries if episode[j] == episode[i])
        total += (
            term
            / {
                "mean": len(entries),
                "sequence_mean": len(episodes) * mates,
                "fixed": len(episodes) * (loss.length_limit or 0),
            }[loss.reduction]
        )
    return total


@pytest.mark.parametrize("loss", GROUP_LOSSES, ids=["grpo", "dr_grpo", "dapo", "engine"])
@settings(max_examples=30)
@given(group_entries())
def test_group_losses_equal_their_definition(loss, entries):
    episode, valid, columns = entries
    weight = reduction_weights(loss.reduction, valid, episode, length_limit=loss.length_limit)
    total, parts = group_loss(loss, **columns, reduction=torch.from_numpy(weight))
    slow = slow_group_loss(loss, episode, valid, columns)
    assert float(total) == pytest.approx(slow, rel=1e-4, abs=1e-5)
    assert 0.0 <= float(parts["clip_fraction"]) <= 1.0 + 1e-6 or loss.reduction == "fixed"


@pytest.mark.parametrize("loss", GROUP_LOSSES, ids=["grpo", "dr_grpo", "dapo", "engine"])
@settings(max_examples=30)
@given(group_entries(), st.integers(1, 4))
def test_the_gradient_does_not_depend_on_the_size_of_micro_batches(loss, entries, size):
    episode, valid, columns = entries
    limit = loss.length_limit
    weight = torch.from_numpy(reduction_weights(loss.reduction, valid, episode, length_limit=limit))
    gradients = []
    for step in (len(valid), size):
        logp = columns["logp"].clone().requires_grad_()
        for start in range(0, len(valid), step):
            part = {n: rows[start : start + step] for n, rows in columns.items() if n != "logp"}
            at = slice(start, start + step)
            group_loss(loss, logp=logp[at], **part, reduction=weight[at])[0].backward()
        gradients.append(logp.grad.numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_masked_entries_leave_no_trace_even_where_they_are_not_finite():
    bad = torch.tensor([0.1, float("inf")])
    logp = bad.clone().requires_grad_()
    zeros = torch.zeros(2)
    total, _ = group_loss(
        grpo(),
        logp=logp,
        entropy=bad,
        logp_base=zeros,
        advantage=torch.tensor([1.0, float("nan")]),
        reduction=torch.tensor([1.0, 0.0]),
        logp_reference=zeros,
    )
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logp.grad).all()
    assert logp.grad[1] == 0.0


def test_reductions_by_hand():
    """Episodes of 1 and 3 valid entries: 1/4 each; 1/2 and 1/6; by L_max 5, 1/10 each."""
    valid = np.array([True, True, True, True, False])
    episode = np.array([7, 3, 3, 3, 3])
    third = 1 / 6
    for reduction, expected in (
        ("mean", [0.25, 0.25, 0.25, 0.25, 0.0]),
        ("sequence_mean", [0.5, third, third, third, 0.0]),
        ("fixed", [0.1, 0.1, 0.1, 0.1, 0.0]),
    ):
        limit = 5 if reduction == "fixed" else None
        found = reduction_weights(reduction, valid, episode, length_limit=limit)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    parts = reduction_weights("sequence_mean", valid[:2], episode[:2], episode_entries={7: 1, 3: 3})
    np.testing.assert_allclose(parts, [0.5, third], rtol=1e-6)
    assert not reduction_weights("mean", np.zeros(2, np.bool_), episode[:2]).any()
    with pytest.raises(BadInput, match="length_limit"):
        reduction_weights("fixed", valid, episode)


def test_kl_estimates_by_hand():
    """x = ln 2: k1 0.693, k2 0.240, k3 1/2 - 1 + 0.693 = 0.193; a huge -x stays finite."""
    x, zero = torch.tensor([math.log(2.0)]), torch.zeros(1)
    assert kl_terms("k1", x, zero).item() == pytest.approx(0.693147, rel=1e-5)
    assert kl_terms("k2", x, zero).item() == pytest.approx(0.240227, rel=1e-5)
    assert kl_terms("k3", x, zero).item() == pytest.approx(0.193147, rel=1e-5)
    assert torch.isfinite(kl_terms("k3", torch.tensor([-500.0]), zero)).all()


def test_the_mean_of_every_kl_estimate_is_the_kl_of_two_gaussians():
    rng = np.random.default_rng(0)
    sample = torch.from_numpy(rng.standard_normal(400_000))
    here = torch.distributions.Normal(0.0, 1.0).log_prob(sample)
    there = torch.distributions.Normal(0.1, 1.0).log_prob(sample)
    exact = 0.1**2 / 2
    for kl in ("k1", "k2", "k3"):
        assert kl_terms(kl, here, there).mean().item() == pytest.approx(exact, rel=0.1)


def test_huber_by_hand():
    """h = 1: 0.25 at 0.5, 1 at 1 and 1 (2*3 - 1) = 5 at 3; its slope goes on at 2."""
    error = torch.tensor([0.5, -1.0, 3.0], requires_grad=True)
    terms = error_terms(error, 1.0)
    assert terms.tolist() == [0.25, 1.0, 5.0]
    terms.sum().backward()
    assert error.grad.tolist() == [1.0, -2.0, 2.0]


def test_importance_weights_have_no_gradient_and_a_cap():
    x = torch.log(torch.tensor([0.5, 3.0])).requires_grad_()
    assert importance_weights(x, 2.0, "truncate").tolist() == pytest.approx([0.5, 2.0])
    assert importance_weights(x, 2.0, "drop").tolist() == pytest.approx([0.5, 0.0])
    assert not importance_weights(x, 2.0, "drop").requires_grad


def test_log_probs_are_summed_before_the_ratio():
    logp = torch.arange(8.0).reshape(1, 2, 2, 2)[0]  # [2, 2, 2]
    valid = torch.tensor([[True, False], [True, True]])
    assert aggregated(logp, valid, "chunk").tolist() == [1.0, 22.0]
    assert aggregated(logp, valid, "action").tolist() == [[1.0, 0.0], [9.0, 13.0]]
    assert aggregated(logp, None, "token") is logp
    broken = torch.tensor([[[1.0], [float("nan")]]])
    assert aggregated(broken, torch.tensor([[True, False]]), "chunk").tolist() == [1.0]


def test_policy_gradient_and_cloning_losses_by_hand():
    """A = 2 -1, log pi = -1 -3, V - R = 1 -2: policy -(-2 + 3)/2, value (1 + 4)/2, entropy 1.5."""
    arguments = {"logp": torch.tensor([-1.0, -3.0]), "entropy": torch.tensor([1.0, 2.0])}
    total, parts = policy_gradient_loss(
        PolicyGradientLoss(value_weight=0.5, entropy_weight=0.1),
        **arguments,
        value=torch.tensor([2.0, 0.0]),
        advantage=torch.tensor([2.0, -1.0]),
        returns=torch.tensor([1.0, 2.0]),
    )
    assert parts["policy_loss"].item() == pytest.approx(-0.5)
    assert total.item() == pytest.approx(-0.5 + 0.5 * 2.5 - 0.15)
    total, _ = cloning_loss(CloningLoss(entropy_weight=0.1), **arguments)
    assert total.item() == pytest.approx(2.0 - 0.15)


def test_ppo_with_a_reference_huber_and_interpolation_by_hand():
    """One entry: logp ln 1.5, old 0, reference ln 3, A 2, V 3, return 0, lag 1, so alpha 1/2.

    logp_prox = .5 ln 1.5; ratio sqrt 1.5 = 1.2247, clipped to 1.2; weight sqrt 1.5.
    policy = -2 * 1.2 * 1.2247;  value (h = 1) 5;  k3: exp(ln 2) - 1 - ln 2 = 0.3069, times ratio.
    """
    ratio = math.sqrt(1.5)
    loss = PPOLoss(correction="interpolate", value_huber=1.0, kl_weight=0.5, kl="k3")
    total, parts = ppo_loss(
        loss,
        logp=torch.log(torch.tensor([1.5])),
        entropy=torch.zeros(1),
        value=torch.tensor([3.0]),
        logp_base=torch.zeros(1),
        value_old=torch.zeros(1),
        advantage=torch.tensor([2.0]),
        returns=torch.zeros(1),
        alpha=torch.tensor([0.5]),
        logp_reference=torch.log(torch.tensor([3.0])),
    )
    assert parts["policy_loss"].item() == pytest.approx(-2.4 * ratio, rel=1e-5)
    assert parts["value_loss"].item() == pytest.approx(5.0)
    distance = (1.0 - math.log(2.0)) * ratio
    assert parts["reference_kl"].item() == pytest.approx(distance, rel=1e-5)
    assert total.item() == pytest.approx(-2.4 * ratio + 2.5 + 0.5 * distance, rel=1e-5)


def test_interpolation_without_lag_is_plain_ppo_bit_for_bit():
    rng = np.random.default_rng(1)
    names = ("logp", "entropy", "value", "logp_base", "value_old", "advantage", "returns")
    columns = {n: torch.from_numpy(rng.standard_normal(9).astype(np.float32)) for n in names}
    plain, _ = ppo_loss(PPOLoss(), **columns)
    near, _ = ppo_loss(PPOLoss(correction="interpolate"), **columns, alpha=torch.zeros(9))
    assert plain.item() == near.item()


@pytest.mark.parametrize(
    ("record", "switches", "match"),
    [
        (PPOLoss, {"kl": "k1", "kl_weight": 0.1}, "gradient of 0"),
        (PPOLoss, {"kl": "k3"}, "belong together"),
        (PPOLoss, {"kl_weight": 0.1}, "belong together"),
        (PPOLoss, {"value_huber": 1.0, "value_weight": 0.0}, "no effect"),
        (PPOLoss, {"target_kl": -0.1}, "target_kl"),
        (PolicyGradientLoss, {"value_huber": 1.0, "value_weight": 0.0}, "no effect"),
        (PolicyGradientLoss, {"normalize_advantages": "minibatch"}, "normalize_advantages"),
        (GroupLoss, {"length_limit": 5}, "belongs to"),
        (GroupLoss, {"reduction": "fixed"}, "belongs to"),
        (GroupLoss, {"dual_clip": 1.0}, "dual_clip"),
        (GroupLoss, {"reduction": "median"}, "reduction"),
        (CloningLoss, {"entropy_weight": -1.0}, "entropy_weight"),
    ],
)
def test_switches_that_cannot_work_are_refused(record, switches, match):
    with pytest.raises(BadInput, match=match):
        record(**switches)


def test_records_travel_and_schedules_become_numbers():
    for loss in (*GROUP_LOSSES, PolicyGradientLoss(), CloningLoss()):
        assert rebuild(describe(loss, where="test"), where="test") == loss
    loss = PPOLoss(clip=linear(0.2, 0.1), entropy_weight=linear(0.1, 0.0))
    half = loss.at(0.5)
    assert (half.clip, half.entropy_weight) == pytest.approx((0.15, 0.05))
    assert (half.low, half.high) == pytest.approx((0.85, 1.15))
    with pytest.raises(TypeError, match="at"):
        _ = loss.low
    assert PPOLoss().at(0.3) is not None


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"loss": grpo()}, "whole episodes"),
        ({"loss": CloningLoss(), "advantages": vtrace(0.9, 0.9)}, "no effect on CloningLoss"),
        ({"loss": PolicyGradientLoss(), "max_lag": 1}, "unclipped"),
        ({"loss": PPOLoss(correction="interpolate"), "advantages": vtrace(0.9, 0.9)}, "both"),
    ],
)
def test_losses_that_do_not_fit_the_training_are_refused(changes, match):
    settings = {
        "loss": PPOLoss(),
        "optimizer": Adam(learning_rate=1e-3),
        "advantages": gae(0.9, 0.9),
        "epochs": 1,
        "minibatch": 4,
        "iterations": 2,
    }
    check_training(**settings)
    with pytest.raises(BadInput, match=match):
        check_training(**{**settings, **changes})
