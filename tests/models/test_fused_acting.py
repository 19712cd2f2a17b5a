"""Acting in numpy: what is stored equals an independent formula, and nothing depends on where."""

import numpy as np
import pytest

from rlinf_async.execution.layout import segment_fields
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic
from rlinf_async.models.acting import make_actor

HORIZON, SLOTS = 9, 6
STATE = (
    ArraySpec(name="pose", shape=(4,), dtype="float32"),
    ArraySpec(name="speed", shape=(3,), dtype="float32"),
)
BOX = ActionSpec(kind="continuous", shape=(2,), dtype="float32", low=(-1.0,) * 2, high=(1.0,) * 2)
CHOICE = ActionSpec(kind="discrete", shape=(), dtype="int64", count=3)


def policy_of(action):
    kind = GaussianActorCritic if action is BOX else CategoricalActorCritic
    return kind(Spaces(observation=STATE, action=action), hidden=(16, 16))


def weights_of(policy, seed=0):
    rng = np.random.default_rng(seed)
    initial = policy.initial_parameters(rng)
    row = {"parameters": (initial + 0.2 * rng.standard_normal(initial.size)).astype(np.float32)}
    for spec in STATE:
        row[f"mean/{spec.name}"] = rng.standard_normal(spec.shape)
        row[f"var/{spec.name}"] = rng.random(spec.shape) + 0.5
    return row


def empty_row(policy, seed=5):
    rng = np.random.default_rng(seed)
    fields = segment_fields(policy.spaces, horizon=HORIZON, slots=SLOTS)
    row = {field.name: np.zeros(field.shape, field.dtype) for field in fields}
    for spec in STATE:
        for part in ("obs", "final"):
            view = row[f"{part}/{spec.name}"]
            view[...] = rng.standard_normal(view.shape)
    row["truncated"][...] = rng.random((HORIZON, SLOTS)) < 0.2
    row["terminated"][...] = rng.random((HORIZON, SLOTS)) < 0.1
    return row


def collect(policy, weights, *, settle=(HORIZON,)):
    actor = make_actor(policy, policy.spaces, SLOTS, normalize=True)
    actor.load(weights)
    row = empty_row(policy)
    actor.begin(np.random.default_rng(11), HORIZON)
    since = 0
    for t in range(HORIZON):
        seen = {spec.name: row[f"obs/{spec.name}"][t] for spec in STATE}
        row["action"][t] = actor.act(t, seen)
        if t + 1 in settle:
            actor.finish(row, since, t + 1)
            since = t + 1
    row["value"][HORIZON] = actor.value(
        {spec.name: row[f"obs/{spec.name}"][HORIZON] for spec in STATE}
    )
    return row


def module_of(policy, weights):
    """The torch module with the same parameters, and the observations that it would see."""
    torch = pytest.importorskip("torch")
    from rlinf_async.models.modules import flatten

    module = policy.to_module()
    flat, _ = flatten(module, gradient=False)
    np.copyto(flat.numpy(), weights["parameters"])

    def see(row, part, at):
        scale = {s.name: np.sqrt(weights[f"var/{s.name}"] + 1e-8) for s in STATE}
        rows = {
            s.name: (row[f"{part}/{s.name}"][at] - weights[f"mean/{s.name}"]) / scale[s.name]
            for s in STATE
        }
        return {n: torch.tensor(np.clip(r, -10, 10).astype(np.float32)) for n, r in rows.items()}

    return torch, module, see


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["gaussian", "categorical"])
def test_stored_log_probs_and_values_equal_those_of_the_torch_module(action):
    policy = policy_of(action)
    weights = weights_of(policy)
    row = collect(policy, weights)
    torch, module, see = module_of(policy, weights)
    with torch.no_grad():
        for t in range(HORIZON):
            chosen = torch.tensor(row["action"][t])
            logp, _, value = module.evaluate(see(row, "obs", t), chosen)
            np.testing.assert_allclose(row["logp"][t], logp, atol=2e-5)
            np.testing.assert_allclose(row["value"][t], value, atol=2e-5)
        np.testing.assert_allclose(
            row["value"][HORIZON], module.value(see(row, "obs", HORIZON)), atol=2e-5
        )
        cut = row["truncated"] & ~row["terminated"]
        assert cut.any()
        np.testing.assert_allclose(
            row["final_value"][cut], module.value(see(row, "final", cut)), atol=2e-5
        )
        assert not row["final_value"][~cut].any()


@pytest.mark.parametrize("action", [BOX, CHOICE], ids=["gaussian", "categorical"])
def test_two_actors_store_the_same_bits(action):
    policy = policy_of(action)
    first, second = (collect(policy, weights_of(policy)) for _ in range(2))
    for name in ("action", "logp", "value", "final_value"):
        np.testing.assert_array_equal(first[name], second[name])


def test_a_segment_settled_in_two_parts_stores_the_same_numbers():
    policy = policy_of(BOX)
    whole = collect(policy, weights_of(policy))
    parts = collect(policy, weights_of(policy), settle=(4, HORIZON))
    np.testing.assert_array_equal(whole["action"], parts["action"])
    for name in ("logp", "value", "final_value"):
        np.testing.assert_allclose(whole[name], parts[name], atol=1e-5)


def test_choices_are_drawn_with_the_probabilities_of_the_softmax():
    policy = policy_of(CHOICE)
    weights = weights_of(policy)
    actor = make_actor(policy, policy.spaces, SLOTS, normalize=True)
    actor.load(weights)
    steps = 4000
    actor.begin(np.random.default_rng(0), steps)
    row = empty_row(policy)
    seen = {spec.name: row[f"obs/{spec.name}"][0] for spec in STATE}
    drawn = np.stack([actor.act(t, seen) for t in range(steps)])
    torch, module, see = module_of(policy, weights)
    with torch.no_grad():
        for choice in range(3):
            at = torch.full((SLOTS,), choice)
            logp, _, _ = module.evaluate(see(row, "obs", 0), at)
            # Five standard deviations of a frequency over 4,000 draws are below 0.04.
            np.testing.assert_allclose((drawn == choice).mean(0), logp.exp(), atol=0.04)
