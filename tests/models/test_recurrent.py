"""Policies with memory: acting step by step and replaying whole sequences are one thing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_async.errors import BadInput
from rlinf_async.execution.memory import state_shape
from rlinf_async.models.modules import as_module
from rlinf_async.models.recurrent import GatedRecurrentUnit
from tests.fixtures.actions import BOX, MIXED, chunked
from tests.fixtures.actor_critics import OBSERVATIONS, STATE, build, rows_of

HORIZON, SLOTS = 7, 4


def memory(module, slots=SLOTS):
    return {name: torch.zeros(slots, *shape) for name, shape in module.state_shape.items()}


def ends():
    """[T, B]: no end, ends in the middle, at the first and last entries, two in a row."""
    first_TB = torch.zeros(HORIZON, SLOTS, dtype=torch.bool)
    first_TB[3, 1] = first_TB[0, 2] = first_TB[6, 2] = first_TB[4, 3] = first_TB[5, 3] = True
    return first_TB


def steps(module, observation_TB, state, first_TB):
    """Act step by step with resets: actions, log-probs, values and the last state."""
    rng, taken = np.random.default_rng(0), []
    with torch.inference_mode():
        for t, first in enumerate(first_TB):
            state = {n: torch.where(first[:, None], 0.0, s) for n, s in state.items()}
            observation = {n: rows[t] for n, rows in observation_TB.items()}
            value_alone = module.value(observation, state)
            *result, state = module.act(observation, rng, state)
            torch.testing.assert_close(result[2], value_alone)
            taken.append(result)
    return *(torch.stack(parts) for parts in zip(*taken, strict=True)), state


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("observation", "action"), [((STATE,), BOX), (OBSERVATIONS, MIXED)])
def test_a_replayed_sequence_is_what_was_acted_step_by_step(observation, action, shared):
    _, module = build(observation, action, recurrent="gru", recurrent_units=6, shared=shared)
    rows = rows_of(observation, HORIZON, SLOTS)
    observation_TB = {name: torch.from_numpy(each) for name, each in rows.items()}
    generator = torch.Generator().manual_seed(0)
    state = {n: torch.randn(SLOTS, *s, generator=generator) for n, s in module.state_shape.items()}
    action_TB, logp_TB, value_TB, _ = steps(module, observation_TB, state, ends())
    logp, entropy, value = module.evaluate_sequence(observation_TB, action_TB, state, ends())
    torch.testing.assert_close(logp, logp_TB, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(value, value_TB, atol=1e-6, rtol=1e-6)
    assert entropy.shape == (HORIZON, SLOTS)


def test_a_sequence_in_two_parts_is_the_whole_one():
    _, module = build(recurrent="gru", recurrent_units=6)
    observation_TB = {"state": torch.from_numpy(rows_of((STATE,), HORIZON, SLOTS)["state"])}
    action_TB, logp_TB, _, _ = steps(module, observation_TB, memory(module), ends())
    _, _, _, middle = steps(
        module, {"state": observation_TB["state"][:3]}, memory(module), ends()[:3]
    )
    logp, _, _ = module.evaluate_sequence(
        {"state": observation_TB["state"][3:]}, action_TB[3:], middle, ends()[3:]
    )
    torch.testing.assert_close(logp, logp_TB[3:], atol=1e-6, rtol=1e-6)


def test_gradients_flow_back_in_time_to_the_episodes_start_and_no_further():
    _, module = build(recurrent="gru", recurrent_units=6)
    state_TB = torch.randn(HORIZON, SLOTS, 3, generator=torch.Generator().manual_seed(0))
    state_TB.requires_grad_()
    start = {n: s.requires_grad_() for n, s in memory(module).items()}
    _, _, value_TB = module.evaluate_sequence(
        {"state": state_TB}, torch.zeros(HORIZON, SLOTS, 3), start, ends()
    )
    value_TB[-1].sum().backward()
    reached = state_TB.grad.abs().sum(dim=2) > 0
    first = torch.tensor([0, 3, 6, 5])  # the entry from which each slot's last episode runs
    assert torch.equal(reached, torch.arange(HORIZON)[:, None] >= first)
    assert (start["core"].grad.abs().sum(dim=1) > 0).tolist() == [True, False, False, False]


def test_memory_that_is_not_finite_ends_with_its_episode():
    _, module = build(recurrent="gru", recurrent_units=6)
    observation_TB = {"state": torch.ones(1, 2, 3)}
    broken = {"core": torch.full((2, 6), float("nan"))}
    first_TB = torch.tensor([[True, False]])
    _, _, value = module.evaluate_sequence(observation_TB, torch.zeros(1, 2, 3), broken, first_TB)
    assert torch.isfinite(value).tolist() == [[True, False]]


def test_the_core_is_torchs_own_unit():
    torch.manual_seed(0)
    core, reference = GatedRecurrentUnit(3, 5), nn.GRU(3, 5)
    reference.load_state_dict(
        {
            "weight_ih_l0": core.input.weight,
            "weight_hh_l0": core.hidden.weight,
            "bias_ih_l0": core.input.bias.data.normal_(),
            "bias_hh_l0": core.hidden.bias.data.normal_(),
        }
    )
    x, start = torch.randn(6, 2, 3), torch.randn(2, 5)
    expected, _ = reference(x, start[None])
    states = core.sequence(x, start, torch.zeros(6, 2, dtype=torch.bool))
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(core.step(x[0], start), expected[0])


def test_chunks_in_sequences_count_as_far_as_they_were_executed():
    _, module = build(action=chunked(BOX, 2), chunk=2, recurrent="gru", recurrent_units=6)
    observation_TB = {"state": torch.ones(HORIZON, SLOTS, 3)}
    action_TB = torch.ones(HORIZON, SLOTS, 2, 3)
    executed_TB = torch.full((HORIZON, SLOTS), 2)
    executed_TB[2, 1] = 0
    arguments = (observation_TB, action_TB, memory(module), ends())
    whole, _, _ = module.evaluate_sequence(*arguments)
    logp, entropy, _ = module.evaluate_sequence(*arguments, executed_TB)
    assert logp[2, 1] == entropy[2, 1] == 0
    whole[2, 1] = 0
    torch.testing.assert_close(logp, whole)


def test_the_mode_follows_the_same_memory():
    _, module = build(recurrent="gru", recurrent_units=6)
    observation, state = {"state": torch.randn(SLOTS, 3)}, memory(module)
    mode, following = module.mean(observation, state)
    *_, expected = module.act(observation, np.random.default_rng(0), state)
    assert torch.equal(following["core"], expected["core"])
    assert mode.shape == (SLOTS, 3)


def test_record_and_module_say_what_they_remember():
    policy, module = build(recurrent="gru", recurrent_units=6, shared=False)
    assert state_shape(policy) == state_shape(module) == {"actor": (6,), "critic": (6,)}
    assert state_shape(build()[0]) == state_shape(build()[1]) == {}


def test_a_policy_with_memory_must_replay_sequences():
    class Forgetful(nn.Module):
        state_shape = {"core": (1,)}  # noqa: RUF012

        def act(self, observation, rng, state): ...

        def evaluate(self, observation, action): ...

        def value(self, observation, state): ...

    with pytest.raises(BadInput, match="has no method evaluate_sequence"):
        as_module(Forgetful())
