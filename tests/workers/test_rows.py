"""What rollout and render write into rows, with chunks and with memory, against slow loops."""

import asyncio
import functools

import numpy as np
import pytest
import torch
from gymnasium.utils.seeding import np_random
from torch import nn

from rlinf_async.algorithms import Adam, PPOLoss, constant, gae
from rlinf_async.algorithms.learner import make_learner
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.request import EnvRequest
from rlinf_async.envs.seeding import episode_seed
from rlinf_async.errors import BadInput
from rlinf_async.execution.layout import segment_fields
from rlinf_async.execution.memory import state_shape
from rlinf_async.execution.references import describe
from rlinf_async.execution.spaces import Spaces, chunked
from rlinf_async.models import ActorCritic, GaussianActorCritic
from rlinf_async.models.acting import make_actor
from rlinf_async.models.modules import as_module, flatten
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.render import RenderWorker
from rlinf_async.workers.rollout import RolloutWorker
from tests.fixtures.drawn_lengths import DrawnLengthEnv

SLOTS, HORIZON, SEGMENTS, SEED, CHUNK = 3, 5, 4, 0, 3
ENV = describe(DrawnLengthEnv, where="test")
POLICIES = {
    "fused record": functools.partial(GaussianActorCritic, hidden=(8,)),
    "without memory": functools.partial(ActorCritic, hidden=(8,)),
    "with memory": functools.partial(ActorCritic, hidden=(8,), recurrent="gru", recurrent_units=5),
    "two memories": functools.partial(
        ActorCritic, hidden=(8,), recurrent="gru", recurrent_units=5, shared=False
    ),
}
each_policy = pytest.mark.parametrize("policy", POLICIES)
each_chunk = pytest.mark.parametrize("chunk", [1, CHUNK])


class OneHost:
    """A host of its own for one rollout and one render worker."""

    def __init__(self, pools):
        self.host, self.workers, self._pools = "host", {}, pools
        self.recorder = Recorder(self.host, 4096)

    def rows(self, pool, row):
        return self._pools[pool][row]

    def sibling(self, worker):
        return self.workers.get(worker)

    def lent(self, borrower, lender, spent_ns):
        pass


def spaces_of(chunk):
    cell = make_cell(ENV, 1)
    spaces = cell.spaces
    cell.close()
    return Spaces(observation=spaces.observation, action=chunked(spaces.action, chunk), chunk=chunk)


def spoiled(field):
    """A row's field full of what nobody may read."""
    rubbish = {"float32": np.nan, "float64": np.nan, "bool": True}.get(field.dtype, -9)
    return np.full(field.shape, rubbish, field.dtype)


def collected(policy, chunk):
    """Segments one after the other, the parameters that each version acted with, the record."""
    spaces = spaces_of(chunk)
    record = POLICIES[policy](spaces)
    memory = state_shape(record)
    fields = segment_fields(spaces, horizon=HORIZON, slots=SLOTS, memory=memory)
    count = sum(p.numel() for p in as_module(record).parameters())
    rng = np.random.default_rng(3)
    versions = [rng.normal(0.0, 0.4, count).astype(np.float32) for _ in range(SEGMENTS)]
    still = Statistics.initial(spaces).fields()
    pools = {
        "segments": [{f.name: spoiled(f) for f in fields} for _ in range(SEGMENTS)],
        "weights": [{"parameters": parameters, **still} for parameters in versions],
    }
    host = OneHost(pools)
    request = EnvRequest(env=ENV, chunk=chunk).to_json()
    cells = {"0": (0, SLOTS)}
    host.workers["render"] = RenderWorker(host, env=request, run_seed=SEED, cells=cells)
    rollout = RolloutWorker(
        host,
        policy=lambda: record,
        spaces=spaces.to_json(),
        normalize=False,
        horizon=HORIZON,
        run_seed=SEED,
        cells={"0": SLOTS},
        render_hosts={},
        free_lag=False,
        deadline_s=1.0,
    )
    summaries = []
    for n in range(SEGMENTS):
        asyncio.run(rollout.adopt(n, n))
        summaries.append(rollout.collect(0, n, n, n))
    host.workers["render"].close()
    return pools["segments"], versions, record, summaries


def simulated(slot, chunk):
    """Executed steps, rewards, bits, true last and next observation of each chunk of a slot."""
    number = 0
    while True:
        length, end = DrawnLengthEnv.draw(np_random(episode_seed(SEED, slot, number))[0])
        for start in range(0, length, chunk):
            made = min(chunk, length - start)
            last = start + made == length
            bits = last and end != "trunc", last and end != "term"
            rewards = [float(start + i + 1) if i < made else 0.0 for i in range(chunk)]
            yield made, rewards, bits, start + made, 0 if last else start + made
        number += 1


@each_chunk
def test_rows_hold_what_was_simulated(chunk):
    rows, *_, summaries = collected("without memory", chunk)
    steps = 0
    for slot in range(SLOTS):
        walk = simulated(slot, chunk)
        for row in rows:
            for t in range(HORIZON):
                made, rewards, bits, last, following = next(walk)
                steps += made
                assert np.atleast_1d(row["reward"][t, slot]).tolist() == rewards
                assert (row["terminated"][t, slot], row["truncated"][t, slot]) == bits
                assert row["obs/state"][t + 1, slot] == following
                if any(bits):
                    assert row["final/state"][t, slot] == last
                if chunk > 1:
                    assert row["executed"][t, slot] == made
    assert sum(summary["env_steps"] for summary in summaries) == steps


def test_the_odd_places_of_ends_are_all_there():
    rows, *_ = collected("without memory", CHUNK)
    ended = np.stack([row["terminated"] | row["truncated"] for row in rows])
    executed = np.stack([row["executed"] for row in rows])
    both = np.stack([row["terminated"] & row["truncated"] for row in rows])
    cut = np.stack([row["truncated"] & ~row["terminated"] for row in rows])
    assert set(executed[ended].tolist()) == {1, 2, 3}
    assert (ended.sum(axis=1) >= 2).any(), "two ends of one slot in one segment"
    assert both.any()
    assert ended[:, -1].any(), "an end exactly at the cut"
    assert cut[:, -1].any(), "a truncation exactly at the cut"
    assert (~ended[:, -1]).any(), "an episode that goes on in the next segment"


def one(array, slot):
    """One slot's entry as a batch of one."""
    return torch.from_numpy(np.array(array[slot : slot + 1]))


class SlowSlot:
    """One slot's policy, entry by entry."""

    def __init__(self, record):
        self.module = as_module(record).eval()
        self.flat, _ = flatten(self.module, gradient=False)
        self.shape = state_shape(record)
        self.begin()

    def begin(self):
        self.memory = {name: torch.zeros(1, *shape) for name, shape in self.shape.items()}

    def value(self, seen):
        given = [self.memory] if self.shape else []
        return float(self.module.value({"state": seen}, *given))

    def logp(self, seen, action, executed):
        if not self.shape:
            return float(self.module.evaluate({"state": seen}, action, executed)[0])
        found = self.module.evaluate_sequence(
            {"state": seen[None]},
            action[None],
            self.memory,
            torch.zeros(1, 1, dtype=torch.bool),
            None if executed is None else executed[None],
        )
        return float(found[0])

    def step(self, seen):
        if self.shape:
            self.memory = self.module.mean({"state": seen}, self.memory)[1]


@each_policy
@each_chunk
def test_numbers_of_the_policy_belong_to_their_version_and_memory(policy, chunk):
    rows, versions, record, _ = collected(policy, chunk)
    close = functools.partial(pytest.approx, rel=1e-4, abs=1e-5)
    slow = SlowSlot(record)
    for slot in range(SLOTS):
        slow.begin()
        for row, parameters in zip(rows, versions, strict=True):
            slow.flat.numpy()[:] = parameters
            for name, memory in slow.memory.items():
                np.testing.assert_allclose(row[f"memory/{name}"][0, slot], memory[0], atol=1e-5)
            for t in range(HORIZON):
                seen = one(row["obs/state"][t], slot)
                executed = one(row["executed"][t], slot) if chunk > 1 else None
                logp = slow.logp(seen, one(row["action"][t], slot), executed)
                assert row["logp"][t, slot] == close(logp)
                assert row["value"][t, slot] == close(slow.value(seen))
                slow.step(seen)
                terminated, truncated = row["terminated"][t, slot], row["truncated"][t, slot]
                behind = 0.0
                if truncated and not terminated:
                    behind = slow.value(one(row["final/state"][t], slot))
                assert row["final_value"][t, slot] == close(behind)
                if terminated or truncated:
                    slow.begin()
            after = slow.value(one(row["obs/state"][HORIZON], slot))
            assert row["value"][HORIZON, slot] == close(after)


@each_policy
@each_chunk
def test_the_learner_finds_the_same_log_probs(policy, chunk):
    rows, versions, record, _ = collected(policy, chunk)
    spaces = spaces_of(chunk)
    learner = make_learner(
        record,
        spaces,
        loss=PPOLoss(clip=0.2),
        optimizer=Adam(learning_rate=constant(1e-3)),
        advantages=gae(gamma=0.9, lam=0.9, discount="step"),
        epochs=1,
        minibatch=HORIZON * SLOTS,
        normalize=False,
        iterations=SEGMENTS,
    )
    fused = policy == "fused record"
    assert learner.name == ("fused" if fused and chunk == 1 else "torch")
    if fused and chunk > 1:
        assert learner.reason == f"actions come in chunks of {chunk}"
    for version, (row, parameters) in enumerate(zip(rows, versions, strict=True)):
        learner.load(parameters)
        found = learner.update(
            row, statistics=Statistics.initial(spaces), scales={}, version=version, seed=0
        )
        assert found["first_log_ratio_max"] < 1e-5 * max(1.0, np.abs(row["logp"]).max())
        assert np.isfinite(learner.parameters).all()
        assert not np.array_equal(learner.parameters, parameters)


@pytest.mark.parametrize("executed", [[1, 2, 3], [3, 3, 3]])
def test_gaussian_log_probs_and_entropies_sum_over_executed_actions(executed):
    spaces = spaces_of(CHUNK)
    module = as_module(GaussianActorCritic(spaces, hidden=(8,), log_std=-0.3))
    rng = np.random.default_rng(0)
    seen = {"state": torch.from_numpy(rng.normal(size=(3, 1)).astype(np.float32))}
    action = torch.from_numpy(rng.normal(size=(3, CHUNK, 1)).astype(np.float32))
    with torch.no_grad():
        logp, entropy, _ = module.evaluate(seen, action, torch.tensor(executed))
        normal = torch.distributions.Normal(module.mean(seen), np.exp(-0.3))
    for row, made in enumerate(executed):
        expected = normal.log_prob(action)[row, :made].sum()
        assert float(logp[row]) == pytest.approx(float(expected), rel=1e-5)
        assert float(entropy[row]) == pytest.approx(float(normal.entropy()[row, :made].sum()))


class Unmasked(nn.Module):
    """A policy that knows nothing of chunks."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def act(self, observation, rng):
        raise NotImplementedError

    def evaluate(self, observation, action):
        raise NotImplementedError

    def value(self, observation):
        raise NotImplementedError


def test_a_policy_that_cannot_leave_out_actions_is_refused_for_chunks():
    with pytest.raises(BadInput, match=r"evaluate has no argument `executed`.*chunks"):
        make_actor(Unmasked(), spaces_of(CHUNK), SLOTS, normalize=False)
    make_actor(Unmasked(), spaces_of(1), SLOTS, normalize=False)
