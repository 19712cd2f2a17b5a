"""Replay against a slow reference that keeps lists of steps, slot by slot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms.off_policy.sampling import Memory, PrioritisedSampler, UniformSampler
from rlinf_async.algorithms.off_policy.store import Store, store_fields
from rlinf_async.algorithms.off_policy.sum_tree import SumTree
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces

GAMMA = 0.5


def spaces_of(chunk: int = 1) -> Spaces:
    shape = (1,) if chunk == 1 else (chunk, 1)
    action = ActionSpec(
        kind="continuous", shape=shape, dtype="float32", low=(-1.0,) * chunk, high=(1.0,) * chunk
    )
    state = ArraySpec(name="state", shape=(2,), dtype="float32")
    return Spaces(observation=(state,), action=action, chunk=chunk)


class Reference:
    """Every step of every slot, with the observation that followed it, as plain records."""

    def __init__(self, slots: int) -> None:
        self.steps: list[list[dict]] = [[] for _ in range(slots)]

    def insert(self, batch: dict) -> None:
        horizon, slots = batch["terminated"].shape
        for b in range(slots):
            for t in range(horizon):
                term, trunc = batch["terminated"][t, b], batch["truncated"][t, b]
                ended = term or trunc
                after = batch["final/state"][t, b] if ended else batch["obs/state"][t + 1, b]
                rewards = np.atleast_1d(batch["reward"][t, b])
                made = int(batch["executed"][t, b]) if "executed" in batch else 1
                self.steps[b].append(
                    {
                        "obs": batch["obs/state"][t, b],
                        "next": after,
                        "action": batch["action"][t, b],
                        "reward": sum(GAMMA**i * float(rewards[i]) for i in range(made)),
                        "kept": GAMMA**made,
                        "term": term,
                        "ended": ended,
                    }
                )

    def transition(self, b: int, at: int, n: int) -> tuple[np.ndarray, float, float, np.ndarray]:
        """Where it began, its reward, its discount, where it bootstraps."""
        reward, discount = 0.0, 1.0
        for i in range(at, min(at + n, len(self.steps[b]))):
            step = self.steps[b][i]
            reward += discount * step["reward"]
            discount *= step["kept"]
            if step["term"]:
                discount = 0.0
            if step["ended"]:
                break
        return self.steps[b][at]["obs"], reward, discount, step["next"]


def batches_of(seed: int, *, slots: int, horizon: int, count: int, chunk: int = 1) -> list[dict]:
    """Batches that follow each other; the first number of each observation is unique."""
    rng = np.random.default_rng(seed)
    number = iter(range(1, 100_000))

    def seen() -> list[float]:
        return [float(next(number)), rng.normal()]

    now = [seen() for _ in range(slots)]
    batches = []
    for _ in range(count):
        shape = (horizon, slots)
        batch = {
            "obs/state": np.zeros((horizon + 1, slots, 2), np.float32),
            "final/state": np.full((*shape, 2), np.nan, np.float32),
            "action": rng.uniform(-1, 1, (*shape, chunk)).astype(np.float32),
            "reward": rng.normal(size=shape if chunk == 1 else (*shape, chunk)),
            "terminated": rng.random(shape) < 0.2,
            "truncated": rng.random(shape) < 0.15,
        }
        if chunk > 1:
            batch["executed"] = rng.integers(1, chunk + 1, shape)
        for t in range(horizon):
            for b in range(slots):
                batch["obs/state"][t, b] = now[b]
                now[b] = seen()
                if batch["terminated"][t, b] or batch["truncated"][t, b]:
                    batch["final/state"][t, b] = now[b]
                    now[b] = seen()
        batch["obs/state"][horizon] = now
        batches.append(batch)
    return batches


def found_in(reference: Reference, obs: np.ndarray) -> tuple[int, int]:
    """Slot and number of the step that was taken in an observation."""
    for b, steps in enumerate(reference.steps):
        for at, step in enumerate(steps):
            if step["obs"][0] == obs[0]:
                return b, at
    raise AssertionError(f"{obs} was never acted in")


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    slots=st.integers(1, 3),
    horizon=st.integers(1, 6),
    count=st.integers(1, 5),
    spare=st.integers(0, 20),
    n=st.integers(1, 4),
    chunk=st.sampled_from([1, 3]),
)
def test_transitions_are_those_of_the_reference(seed, slots, horizon, count, spare, n, chunk):
    store = Store.private(spaces_of(chunk), slots=slots, length=2 * horizon + 2 + spare)
    reference = Reference(slots)
    for batch in batches_of(seed, slots=slots, horizon=horizon, count=count, chunk=chunk):
        store.insert(batch)
        reference.insert(batch)
    index = np.flatnonzero(store.arrays["valid"])
    found = store.transitions(index, steps=n, gamma=GAMMA)
    for i in range(len(index)):
        b, at = found_in(reference, found["obs/state"][i])
        obs, reward, discount, after = reference.transition(b, at, n)
        np.testing.assert_array_equal(found["obs/state"][i], obs)
        np.testing.assert_array_equal(found["next/state"][i], after)
        np.testing.assert_array_equal(found["action"][i], reference.steps[b][at]["action"])
        assert found["reward"][i] == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert found["discount"][i] == pytest.approx(discount)
        # Kept are the newest steps of each slot, without a gap.
        assert b == index[i] // store.length
    kept = [int(np.count_nonzero(row)) for row in store.arrays["valid"]]
    numbers = [found_in(reference, obs)[1] for obs in found["obs/state"]]
    newest = [list(range(len(s) - k, len(s))) for s, k in zip(reference.steps, kept, strict=True)]
    assert sorted(numbers) == sorted(number for slot in newest for number in slot)
    assert all(
        k >= min(len(s), (store.length - 1) // 2)
        for s, k in zip(reference.steps, kept, strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), length=st.integers(1, 6))
def test_sequences_stop_where_their_episode_does(seed, length):
    store, reference = Store.private(spaces_of(), slots=2, length=24), Reference(2)
    for batch in batches_of(seed, slots=2, horizon=5, count=4):
        store.insert(batch)
        reference.insert(batch)
    index = store.draw(20, np.random.default_rng(seed))
    found = store.sequences(index, steps=length)
    for i in range(20):
        b, at = found_in(reference, found["obs/state"][i, 0])
        expected = []
        for step in reference.steps[b][at : at + length]:
            expected.append(step)
            if step["ended"]:
                break
        assert found["mask"][i].sum() == len(expected)
        assert found["mask"][i, : len(expected)].all()
        for k, step in enumerate(expected):
            np.testing.assert_array_equal(found["obs/state"][i, k], step["obs"])
            assert found["terminated"][i, k] == step["term"]
        assert not found["obs/state"][i, len(expected) :].any()
        np.testing.assert_array_equal(found["last/state"][i], expected[-1]["next"])


def test_a_hand_computed_three_step_return():
    # Rewards 1, 2, 4 at gamma 0.5: 1 + 1 + 1 = 3 and discount 1/8; from the second step on the
    # write head cuts it after two: 2 + 2 = 4 and 1/4. A truncation bootstraps, a termination does
    # not.
    store = Store.private(spaces_of(), slots=1, length=12)
    batch = batches_of(0, slots=1, horizon=3, count=1)[0]
    batch["reward"][:, 0] = [1.0, 2.0, 4.0]
    batch["terminated"][:], batch["truncated"][:] = False, False
    store.insert(batch)
    found = store.transitions(np.array([0, 1]), steps=3, gamma=0.5)
    assert found["reward"].tolist() == [3.0, 4.0]
    assert found["discount"].tolist() == [0.125, 0.25]
    np.testing.assert_array_equal(found["next/state"][0], batch["obs/state"][3, 0])
    for bits, discount in (
        (("terminated",), 0.0),
        (("truncated",), 0.25),
        (("terminated", "truncated"), 0.0),
    ):
        store = Store.private(spaces_of(), slots=1, length=12)
        ended = {**batch, **{name: np.array([[False], [True], [False]]) for name in bits}}
        ended["final/state"] = np.full((3, 1, 2), 9.0, np.float32)
        store.insert(ended)
        found = store.transitions(np.array([0]), steps=3, gamma=0.5)
        assert found["reward"].tolist() == [2.0]
        assert found["discount"].tolist() == [discount]
        assert found["next/state"].tolist() == [[9.0, 9.0]]


def test_draws_are_uniform_over_steps_and_never_the_head_or_an_end():
    store = Store.private(spaces_of(), slots=3, length=40)
    for batch in batches_of(4, slots=3, horizon=8, count=6):
        store.insert(batch)
    drawn = store.draw(60_000, np.random.default_rng(1))
    valid = np.flatnonzero(store.arrays["valid"])
    assert store.valid_at(drawn).all()
    counts = np.bincount(drawn, minlength=store.arrays["valid"].size)[valid]
    expected = 60_000 / len(valid)
    # Six deviations of a binomial count.
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)


@settings(max_examples=40, deadline=None)
@given(
    leaves=st.integers(1, 40),
    puts=st.lists(st.tuples(st.integers(0, 39), st.floats(0, 10)), min_size=1, max_size=30),
    seed=st.integers(0, 2**31),
)
def test_the_tree_finds_what_a_cumulative_sum_finds(leaves, puts, seed):
    tree, plain = SumTree(leaves), np.zeros(leaves)
    for leaf, priority in puts:
        tree.put(np.array([leaf % leaves]), priority)
        plain[leaf % leaves] = priority
    assert tree.total == pytest.approx(plain.sum())
    if plain.sum() < 1e-6:
        return
    mass = np.random.default_rng(seed).random(50) * tree.total
    found = tree.find(mass)
    assert (plain[found] > 0).all()
    stop = np.cumsum(plain)
    near = 1e-9 * stop[-1]
    assert (mass <= stop[found] + near).all()
    assert (mass >= stop[found] - plain[found] - near).all()


def test_priorities_decide_how_often_an_entry_is_drawn_and_weights_undo_it():
    store = Store.private(spaces_of(), slots=1, length=12)
    sampler = PrioritisedSampler(store, alpha=1.0, beta=1.0)
    batch = batches_of(0, slots=1, horizon=4, count=1)[0]
    batch["terminated"][:], batch["truncated"][:] = False, False
    sampler.inserted(store.insert(batch))
    sampler.learn(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    index, weight = sampler.draw(10_000, np.random.default_rng(0))
    counts = np.bincount(index, minlength=4)
    np.testing.assert_allclose(counts / 10_000, [0.1, 0.2, 0.3, 0.4], atol=2e-3)
    # weight ~ 1 / probability, over the largest: 1, 1/2, 1/3, 1/4
    for entry in range(4):
        assert weight[index == entry][0] == pytest.approx(1 / (entry + 1), rel=1e-4)


def test_overwritten_entries_lose_their_priority_and_ends_have_none():
    store = Store.private(spaces_of(), slots=2, length=14)
    sampler = PrioritisedSampler(store, alpha=0.6, beta=0.4)
    for batch in batches_of(8, slots=2, horizon=6, count=5):
        sampler.inserted(store.insert(batch))
        priorities = sampler.tree.leaves_view()
        assert ((priorities > 0) == store.arrays["valid"].ravel()).all()
        sampler.learn(sampler.draw(5, np.random.default_rng(0))[0], np.full(5, 3.0))


def test_half_of_each_sample_comes_from_demonstrations():
    spaces = spaces_of()
    online, shown = (Store.private(spaces, slots=1, length=20) for _ in range(2))
    memory = Memory(UniformSampler(online), demonstrations=shown)
    first, second = batches_of(0, slots=1, horizon=4, count=2)
    first["obs/state"][..., 1], second["obs/state"][..., 1] = 1.0, 2.0
    memory.insert(first)
    shown.insert(second)
    sample = memory.sample(10, np.random.default_rng(0), steps=1, gamma=0.9)
    assert sample.rows["obs/state"][:, 1].tolist() == [1.0] * 5 + [2.0] * 5
    assert len(sample.index) == 5


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_restored_replay_samples_the_same(tmp_path: Path, prioritised: bool):
    def empty() -> Memory:
        store = Store.private(spaces_of(), slots=2, length=20)
        sampler = (
            PrioritisedSampler(store, alpha=0.6, beta=0.4) if prioritised else UniformSampler(store)
        )
        return Memory(sampler)

    memory, again = empty(), empty()
    for batch in batches_of(3, slots=2, horizon=5, count=3):
        memory.insert(batch)
    memory.save(tmp_path / "replay.npz")
    again.restore(tmp_path / "replay.npz")
    more = batches_of(5, slots=2, horizon=5, count=1)[0]
    samples = []
    for each in (memory, again):
        each.insert(more)
        samples.append(each.sample(16, np.random.default_rng(2), steps=3, gamma=0.9).rows)
    for name, rows in samples[0].items():
        np.testing.assert_array_equal(rows, samples[1][name])
    with pytest.raises(BadInput, match="another replay"):
        Memory(UniformSampler(Store.private(spaces_of(), slots=2, length=21))).restore(
            tmp_path / "replay.npz"
        )


def test_steps_that_cannot_fit_and_an_empty_replay_are_refused():
    store = Store.private(spaces_of(), slots=2, length=6)
    with pytest.raises(BadInput, match="nothing to sample"):
        store.draw(3, np.random.default_rng(0))
    with pytest.raises(BadInput, match="do not fit"):
        store.insert(batches_of(0, slots=2, horizon=6, count=1)[0])
    with pytest.raises(BadInput, match="slots"):
        store.insert(batches_of(0, slots=1, horizon=2, count=1)[0])


WRITER = """
import json, sys
from rlinf_async.algorithms.off_policy.store import Store
from rlinf_async.communication.pool import PoolDescriptor, RowPool
from tests.algorithms.test_replay import batches_of
store = Store(RowPool.attach(PoolDescriptor.from_json(json.loads(sys.argv[1]))).row(0))
batch = batches_of(0, slots=2, horizon=50, count=1)[0]
batch["terminated"][:], batch["truncated"][:] = False, False
for number in range(1, 1_000_000):
    for name in ("obs/state", "action", "reward"):
        batch[name][...] = number
    store.insert(batch)
    sum(range(20_000))  # as a run does, the writer spends most of its time elsewhere
"""


@pytest.mark.process
def test_a_reader_in_another_process_never_sees_half_a_batch():
    pool = RowPool.create("replay", store_fields(spaces_of(), slots=2, length=52), 1)
    store = Store(pool.row(0))
    described = json.dumps(pool.descriptor.to_json())
    writer = subprocess.Popen([sys.executable, "-c", WRITER, described])
    try:
        while store.arrays["generation"][0] < 2:
            assert writer.poll() is None
        for _ in range(100):
            state, reward = store.reading(
                lambda: (store.arrays["obs/state"].copy(), store.arrays["reward"].copy())
            )
            # The ring has room for one batch and a bit: entries come from two batches in a row.
            numbers = set(reward[reward > 0].tolist())
            assert len(numbers) <= 2
            assert set(state[state > 0].tolist()) <= numbers
    finally:
        writer.kill()
        writer.wait()
        pool.close()
