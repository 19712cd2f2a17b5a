"""Work lists in the slots of a cell: back-filled, masked behind their ends, cut only when asked."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.utils.seeding import np_random

from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.envs.request import EnvRequest
from rlinf_async.envs.seeding import group_seed
from rlinf_async.errors import BadInput
from rlinf_async.execution.layout import segment_fields
from rlinf_async.execution.records import Batch, Episode, Segment
from rlinf_async.execution.references import describe
from rlinf_async.models import ActorCritic, GaussianActorCritic
from rlinf_async.models.modules import as_module
from rlinf_async.models.noise import SlotNoise
from rlinf_async.scheduling.work_list import Episodes
from rlinf_async.workers.render_episodes import EpisodeRenderWorker, check_one_task
from rlinf_async.workers.rollout_episodes import EpisodeRolloutWorker
from rlinf_async.workers.train_episodes import EpisodeTrainWorker, entries_of
from tests.fixtures.drawn_lengths import DrawnLengthEnv
from tests.fixtures.envs import LuckyEnv
from tests.workers.test_rows import ENV, OneHost, spaces_of, spoiled

SEED, BATCH, SIZE, SLOTS = 5, 2, 3, 3
POLICIES = {"fused": GaussianActorCritic, "torch": ActorCritic}


def expected(item, limit, chunk):
    """Simulator steps and both bits of an episode, from its seed alone."""
    length, end = DrawnLengthEnv.draw(np_random(group_seed(SEED, BATCH, item // SIZE))[0])
    if length > limit * chunk:
        return limit * chunk, (False, True)
    return length, (end != "trunc", end != "term")


class Collected:
    """Lists run one behind the other in a row of `horizon` steps."""

    def __init__(
        self,
        policy,
        *lists,
        slots=SLOTS,
        chunk=1,
        limit=6,
        horizon=60,
        keep_share=None,
        env=ENV,
    ):
        spaces = spaces_of(chunk)
        record = POLICIES[policy](spaces, hidden=(8,))
        count = sum(p.numel() for p in as_module(record).parameters())
        weights = np.random.default_rng(3).normal(0.0, 0.4, count).astype(np.float32)
        fields = segment_fields(spaces, horizon=horizon, slots=slots, items=True)
        self.row = {f.name: spoiled(f) for f in fields}
        still = Statistics.initial(spaces).fields()
        host = OneHost({"segments": [self.row], "weights": [{"parameters": weights, **still}]})
        host.workers["render"] = EpisodeRenderWorker(
            host,
            env=EnvRequest(env=env, chunk=chunk).to_json(),
            run_seed=SEED,
            cells={"0": (0, slots)},
        )
        rollout = EpisodeRolloutWorker(
            host,
            policy=lambda: record,
            spaces=spaces.to_json(),
            normalize=False,
            horizon=horizon,
            run_seed=SEED,
            cells={"0": slots},
            render_hosts={},
            free_lag=False,
            deadline_s=1.0,
        )
        asyncio.run(rollout.adopt(0, 0))
        self.told, start = [], 0
        work = {"size": SIZE, "limit": limit, "keep_share": keep_share}
        for items in lists:
            told = rollout.collect_items(0, BATCH, 0, 0, start, items=items, **work)
            self.told.append(told)
            start = told["stop"]
        host.workers["render"].close()
        self.horizon, self.slots = horizon, slots
        self.episodes = {e["number"]: Episode(**e) for t in self.told for e in t["episodes"]}

    def entries(self):
        """The entries of the episodes that ended."""
        return entries_of(self.segment(0, tuple(self.episodes.values())), self.episodes)

    def segment(self, cell, episodes):
        """The record of the row, as if of this cell and with these episodes."""
        return Segment(
            cell=cell,
            batch=BATCH,
            row=0,
            first_slot=0,
            slots=self.slots,
            horizon=self.horizon,
            oldest_version=0,
            newest_version=0,
            env_steps=0,
            episodes=episodes,
            arrays=self.row,
        )


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_list_is_run_whole_and_behind_it_another(policy, chunk):
    limit = 6 if chunk == 1 else 2
    found = Collected(policy, list(range(12)), [12, 13, 14], limit=limit, chunk=chunk)
    assert sorted(found.episodes) == list(range(15))
    entries = found.entries()
    assert np.isfinite(entries["logp"]).all()
    steps = 0
    for item, episode in found.episodes.items():
        length, bits = expected(item, limit, chunk)
        mine = entries["item"] == item
        assert (episode.length, episode.seed) == (length, group_seed(SEED, BATCH, item // SIZE))
        assert episode.episode_return == length * (length + 1) / 2
        assert mine.sum() == -(-length // chunk), "nothing is stored behind the end"
        last = np.flatnonzero(mine)[-1]
        assert (entries["terminated"][last], entries["truncated"][last]) == bits
        assert entries["final/state"][last, 0] == length
        assert not (entries["terminated"] | entries["truncated"])[mine][:-1].any()
        seen = entries["obs/state"][mine, 0]
        assert seen.tolist() == [min(i * chunk, length) for i in range(mine.sum())]
        steps += length
    assert sum(told["env_steps"] for told in found.told) == steps
    assert not any(told["cut"] for told in found.told)
    stop = found.told[-1]["stop"]
    busy = (found.row["item"][:stop] >= 0).sum(axis=1)
    assert busy[: found.told[0]["stop"] // 2].min() == SLOTS, "slots that end are filled again"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_episode_has_the_same_noise_wherever_it_runs(policy):
    one = Collected(policy, list(range(9)), slots=3).entries()
    other = Collected(policy, [7, 8], [3], [4, 5, 6, 0, 1, 2], slots=2).entries()
    for item in range(9):
        for name in ("action", "logp"):
            mine, its = one[name][one["item"] == item], other[name][other["item"] == item]
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)
    starts = [one["action"][one["item"] == item][0, 0] for item in range(9)]
    assert len(set(starts)) == 9, "episodes of a group act differently"


def test_quick_successes_are_counted_no_more_than_slow_failures():
    env = describe(functools.partial(LuckyEnv, patience=40), where="test")
    items = list(range(30))
    found = [
        Collected("fused", items, slots=slots, limit=50, horizon=40 * 30, env=env).episodes
        for slots in (1, 4, 64)
    ]
    won = [[each[i].success_once for i in items] for each in found]
    assert won[0] == won[1] == won[2]
    lucky = [np_random(group_seed(SEED, BATCH, i // SIZE))[0].random() < 0.5 for i in items]
    assert won[0] == lucky
    assert {found[0][i].length for i in items} == {10, 40}


def test_stragglers_are_cut_only_where_asked():
    whole = Collected("fused", list(range(12)))
    cut = Collected("fused", list(range(12)), keep_share=0.5)
    assert len(cut.episodes) >= 6
    assert len(cut.episodes) + len(cut.told[0]["cut"]) == 12
    assert cut.told[0]["stop"] < whole.told[0]["stop"]
    assert set(cut.entries()["item"]) == set(cut.episodes), "what was cut is not learned from"


def test_a_batch_holds_the_untied_groups_in_order_whichever_cell_ran_them():
    spaces = spaces_of(1)
    train = EpisodeTrainWorker(
        OneHost({}),
        policy=lambda: GaussianActorCritic(spaces, hidden=(8,)),
        spaces=spaces.to_json(),
        normalize=True,
        run_seed=0,
        iterations=3,
        max_lag=0,
        lag="exact",
        init_from=None,
        dumps="",
    )
    train._plan = Episodes(groups=2, size=SIZE, limit=6, replacements=2)
    first, second = (Collected("fused", [i for i in range(12) if i % 2 == c]) for c in range(2))
    segments = []
    for cell, part in enumerate((second, first)):
        # Group 1 is made to tie; all others are made not to.
        episodes = tuple(
            replace(e, episode_return=float(n if n // SIZE != 1 else 0))
            for n, e in part.episodes.items()
        )
        segments.append(part.segment(cell, episodes))
    fields = train._gather(Batch(index=0, segments=tuple(segments)))
    assert fields["number"].tolist() == [0, 1, 2, 6, 7, 8]
    assert fields["group"].tolist() == [0, 0, 0, 2, 2, 2]
    assert fields["score"].tolist() == [0.0, 1.0, 2.0, 6.0, 7.0, 8.0]
    lengths = [expected(n, 6, 1)[0] for n in fields["number"]]
    assert fields["episode"].tolist() == np.repeat(np.arange(6), lengths).tolist()
    assert fields["final/state"][:, 0].tolist() == lengths
    train._merge(fields, [SLOTS, SLOTS], fresh=True)
    seen = np.concatenate([np.arange(length + 1) for length in lengths])
    moments = train._statistics.observations["state"]
    assert moments.count == len(seen)
    assert moments.mean[0] == pytest.approx(seen.mean())
    assert moments.var[0] == pytest.approx(seen.var())


def test_groups_across_tasks_are_refused():
    check_one_task({"reach"})
    with pytest.raises(BadInput, match="must be of one"):
        check_one_task({"reach", "push"})


def test_noise_of_episodes_is_drawn_step_by_step():
    noise = SlotNoise(2)
    for slot in range(2):
        noise.begin(slot, np.random.default_rng(slot))
    drawn = noise.standard_normal((2, 3), dtype=np.float32)
    assert (drawn[1] == np.random.default_rng(1).standard_normal(3, dtype=np.float32)).all()
    with pytest.raises(BadInput, match="step by step"):
        noise.random((7, 2, 3))
