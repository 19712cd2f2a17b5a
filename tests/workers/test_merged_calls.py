"""One policy call for several cells: the same answers, whatever comes together."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rlinf_async.execution.spaces import Spaces
from rlinf_async.models import ActorCritic, CategoricalActorCritic, GaussianActorCritic
from rlinf_async.models.acting import ActCall, act_together, make_actor
from rlinf_async.models.modules import as_module, flatten
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.merged_calls import MergedCalls
from tests.fixtures.actions import BOX
from tests.fixtures.actor_critics import STATE, rows_of
from tests.fixtures.batches import vector_spaces

HORIZON = 4
SLOTS = (3, 1, 2)
CELLS = range(len(SLOTS))


def policy_of(kind: str):
    if kind == "categorical":
        return CategoricalActorCritic(vector_spaces(discrete=True, actions=3), hidden=(8,))
    if kind == "gaussian":
        return GaussianActorCritic(vector_spaces(), hidden=(8,))
    memory = {"recurrent": "gru", "recurrent_units": 5} if kind == "recurrent" else {}
    return ActorCritic(Spaces(observation=(STATE,), action=BOX), hidden=(8,), **memory)


def actors_of(policy):
    """An actor for each cell, all with the same weights and each with its own generator."""
    torch.manual_seed(0)
    module = as_module(policy)
    parameters = flatten(module, gradient=False)[0].numpy()
    found = []
    for cell, slots in enumerate(SLOTS):
        actor = make_actor(policy, policy.spaces, slots, normalize=False)
        actor.load({"parameters": parameters})
        actor.begin(np.random.default_rng(cell), HORIZON)
        found.append(actor)
    return found


def stored(actor, slots: int, actions: list, observations: list):
    """Log-probs and values of a whole segment as a row gets them."""
    row = {
        "action": np.stack(actions),
        "terminated": np.zeros((HORIZON, slots), np.bool_),
        "truncated": np.zeros((HORIZON, slots), np.bool_),
        "logp": np.zeros((HORIZON, slots), np.float32),
        "value": np.zeros((HORIZON + 1, slots), np.float32),
        "final_value": np.zeros((HORIZON, slots), np.float32),
        "obs/state": np.stack([*observations, observations[-1]]),
    }
    for name, shape in getattr(actor, "_shapes", {}).items():
        row[f"memory/{name}"] = np.zeros((1, slots, *shape), np.float32)
    actor.finish(row, 0, HORIZON)
    return row


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_built_in_policies_act_together_as_they_do_apart(kind):
    policy = policy_of(kind)
    apart, together = actors_of(policy), actors_of(policy)
    for t in range(HORIZON):
        seen = [rows_of((STATE,), slots, seed=10 * t + n) for n, slots in enumerate(SLOTS)]
        alone = [apart[n].act(t, seen[n]).copy() for n in CELLS]
        merged = act_together([ActCall(together[n], t, seen[n]) for n in CELLS])
        for one, other in zip(alone, merged, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["torch", "recurrent"])
def test_what_torch_policies_store_belongs_to_what_they_did_together(kind):
    policy = policy_of(kind)
    together, alone = actors_of(policy), actors_of(policy)
    actions: list[list] = [[] for _ in CELLS]
    seen: list[list] = [[] for _ in CELLS]
    for t in range(HORIZON):
        calls = []
        for n, slots in enumerate(SLOTS):
            seen[n].append(rows_of((STATE,), slots, seed=10 * t + n)["state"])
            calls.append(ActCall(together[n], t, {"state": seen[n][t]}))
        for n, action in enumerate(act_together(calls)):
            actions[n].append(action)
    for n, slots in enumerate(SLOTS):
        merged = stored(together[n], slots, actions[n], seen[n])
        if kind == "recurrent":
            check_sequence(policy, merged)
            continue
        for t in range(HORIZON):
            alone[n].act(t, {"state": seen[n][t]})
        own = stored(alone[n], slots, actions[n], seen[n])
        np.testing.assert_allclose(own["value"][:HORIZON], merged["value"][:HORIZON], atol=1e-6)
        if n == 0:  # the noise of all is the first one's, which begins with its own
            assert not np.array_equal(actions[0][1], actions[1][1][: SLOTS[0]])


def check_sequence(policy, row) -> None:
    """The log-probs and values of a row are those of its sequence, computed as a whole."""
    torch.manual_seed(0)
    module = as_module(policy)
    slots = row["logp"].shape[1]
    memory = {name: torch.zeros(slots, *shape) for name, shape in module.state_shape.items()}
    never = torch.zeros(row["logp"].shape, dtype=torch.bool)
    seen = {"state": torch.from_numpy(row["obs/state"][:HORIZON])}
    with torch.no_grad():
        action = torch.from_numpy(row["action"])
        logp, _, value = module.evaluate_sequence(seen, action, memory, never)
    np.testing.assert_allclose(logp.numpy(), row["logp"], atol=1e-5)
    np.testing.assert_allclose(value.numpy(), row["value"][:HORIZON], atol=1e-5)


class Segment:
    """What a merged call needs of a segment: n slots, a version, and where answers go."""

    def __init__(self, slots: int, version: int = 0) -> None:
        self.slots, self.version = slots, version
        self.answers: dict[int, int] = {}

    def call(self, t: int) -> ActCall:
        return ActCall(self, t, {})

    def act(self, t: int, observation: dict) -> int:
        if self.slots == 13:
            raise RuntimeError("planted")
        return self.version

    @staticmethod
    def act_together(calls: list[ActCall]) -> list[int]:
        return [call.actor.act(call.t, call.observation) for call in calls]

    def put(self, t: int, action: int) -> None:
        self.answers[t] = action


def merged_calls(sizes: list[list[int]], entered=None, leave=None, **options) -> MergedCalls:
    """Notes the slots of each call; with `leave` the first call waits for it."""

    async def compute(work, batch):
        sizes.append([one.segment.slots for one in batch])
        if entered is not None and len(sizes) == 1:
            entered.set()
            await leave.wait()
        work(batch)

    options = {"most_slots": None, "wait_s": 0.0} | options
    return MergedCalls(compute, Recorder("test", 1 << 12), **options)


def test_who_is_ready_while_a_call_is_under_way_shares_the_next_one():
    async def scenario() -> tuple[list, list]:
        sizes: list[list[int]] = []
        entered, leave = asyncio.Event(), asyncio.Event()
        merged = merged_calls(sizes, entered, leave)
        segments = [Segment(1), Segment(2, version=1), Segment(3), Segment(4)]
        async with asyncio.TaskGroup() as group:
            group.create_task(merged.act(segments[0], 0))
            await entered.wait()
            for segment in segments[1:]:
                group.create_task(merged.act(segment, 0))
            await asyncio.sleep(0)  # all three are waiting now
            leave.set()
        return sizes, [segment.answers for segment in segments]

    sizes, answers = asyncio.run(scenario())
    assert sizes == [[1], [2, 3, 4]]
    assert answers == [{0: 0}, {0: 1}, {0: 0}, {0: 0}]  # each by its own version


def test_a_call_has_at_most_so_many_slots_and_waits_for_them_no_longer_than_that():
    async def scenario(wait_s: float, count: int) -> list:
        sizes: list[list[int]] = []
        merged = merged_calls(sizes, most_slots=4, wait_s=wait_s)
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(merged.act(Segment(2), 0))
        return sizes

    assert asyncio.run(scenario(3600.0, 4)) == [[2, 2], [2, 2]]  # full calls wait for nothing
    assert asyncio.run(scenario(0.001, 3)) == [[2, 2], [2]]


def test_the_first_cell_of_a_call_that_fails_raises_and_others_end_with_it():
    ends: list[bool] = []

    async def scenario() -> None:
        merged = merged_calls([], wait_s=0.001)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(merged.act(Segment(slots), 0)) for slots in (13, 2)]
            tasks[1].add_done_callback(lambda task: ends.append(task.cancelled()))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(scenario())
    assert [str(error) for error in caught.value.exceptions] == ["planted"]
    assert ends == [True]
