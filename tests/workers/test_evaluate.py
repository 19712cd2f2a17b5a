"""Evaluations score the work list's own episodes, whatever the number of slots."""

import functools
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlinf_async.envs.registry import make_cell
from rlinf_async.errors import BadInput
from rlinf_async.execution.checkpoint import write_checkpoint
from rlinf_async.execution.references import describe, describe_factory
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models import GaussianActorCritic
from rlinf_async.models.loading import LoadedPolicy
from rlinf_async.recording import Recording
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.evaluate import EvaluateWorker
from rlinf_async.workers.scoring import Scoring, SlotPolicies
from tests.fixtures.envs import CountEnv, FilmedEnv, LuckyEnv, TaskEnv


def loaded(spaces: Spaces) -> LoadedPolicy:
    """A policy whose actions depend on what it sees."""
    policy = GaussianActorCritic(spaces, hidden=(8,))
    parameters = policy.initial_parameters(np.random.default_rng(0))
    parameters += np.random.default_rng(1).normal(0.0, 0.2, parameters.shape).astype(np.float32)
    return LoadedPolicy(policy, spaces, parameters, None, {"version": 5})


def scored(env, slots: int, items, *, sampled: bool = False, seed: int = 0, watchers=()):
    """The episodes in the order in which they finished."""
    cell = make_cell(env if isinstance(env, str) else describe(env, where="test"), slots)
    policies = SlotPolicies(lambda: loaded(cell.spaces), slots, deterministic=not sampled)
    scoring = Scoring(cell, policies, watchers, run_seed=seed, items=items)
    while not scoring.done:
        scoring.step()
    cell.close()
    return scoring.take_finished()


def in_order(episodes):
    """What each item scored."""
    fields = ("number", "seed", "episode_return", "length", "success_once", "success_at_end")
    return sorted(tuple(episode[name] for name in fields) for episode in episodes)


def test_the_success_rate_is_unbiased_with_any_number_of_slots():
    found = {slots: scored(LuckyEnv, slots, range(40)) for slots in (1, 4, 64)}
    assert in_order(found[1]) == in_order(found[4]) == in_order(found[64])
    successes = [episode["success_once"] for episode in found[64]]
    assert 0.3 < np.mean(successes) < 0.7
    assert {episode["length"] for episode in found[64]} == {10, 500}
    # What "the first to finish" would have said: successes are the short ones.
    assert np.mean(successes[:12]) == 1.0


@pytest.mark.parametrize("sampled", [False, True])
def test_every_item_scores_the_same_bits_in_any_slot(sampled):
    found = [
        in_order(scored("Hopper-v5", slots, range(6), sampled=sampled)) for slots in (1, 3, 6, 9)
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert len({episode[2] for episode in found[0]}) == 6


def test_sampled_actions_differ_from_the_mode_and_between_seeds():
    mode, sample, other = (
        in_order(scored("Hopper-v5", 2, range(2), sampled=sampled, seed=seed))
        for sampled, seed in ((False, 0), (True, 0), (True, 1))
    )
    assert mode[0][1] == sample[0][1] != other[0][1]
    assert mode[0][2] != sample[0][2] != other[0][2]


def test_seeds_are_distinct_and_never_those_of_training():
    episodes = in_order(scored(functools.partial(CountEnv, action="continuous"), 3, range(40)))
    seeds = [seed for _, seed, *_ in episodes]
    assert len(set(seeds)) == 40
    assert all(seed % 2 == 1 for seed in seeds)  # training seeds are even


def lucky_vector(num_envs: int, mode: str):
    """The same environments in one that resets itself."""
    make = functools.partial(LuckyEnv, patience=30)
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])


@pytest.mark.parametrize("mode", ["DISABLED", "NEXT_STEP", "SAME_STEP"])
def test_environments_that_reset_themselves_score_the_same(mode):
    expected = scored(functools.partial(LuckyEnv, patience=30), 1, range(12))
    found = scored(functools.partial(lucky_vector, mode=mode), 5, range(12))
    assert in_order(found) == in_order(expected)


def test_a_slot_without_an_item_is_not_stepped():
    cell = make_cell(describe(functools.partial(CountEnv, action="continuous"), where="test"), 4)
    policies = SlotPolicies(lambda: loaded(cell.spaces), 4, deterministic=True)
    scoring = Scoring(cell, policies, (), run_seed=0, items=range(5))
    made = []
    while not scoring.done:
        made.append(scoring.step())
    assert made == [4] * 5 + [1] * 5  # CountEnv's episodes last 5 steps
    cell.close()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint for environments of one number and one action."""
    cell = make_cell(describe(functools.partial(CountEnv, action="continuous"), where="test"), 1)
    policy = GaussianActorCritic(cell.spaces, hidden=(8,))
    write_checkpoint(
        tmp_path / "checkpoint",
        parameters=policy.initial_parameters(np.random.default_rng(0)),
        parameter_shapes=policy.parameter_shapes(),
        statistics={},
        policy={
            "policy": describe_factory(
                GaussianActorCritic, {"spaces": cell.spaces, "hidden": (8,)}, where="test"
            ),
            "spaces": cell.spaces.to_json(),
            "normalize_observations": False,
        },
        manifest={"version": 5},
        optimizer={},
    )
    cell.close()
    return tmp_path / "checkpoint"


class Context:
    """As much of a host as the worker needs here."""

    host = "test"

    def __init__(self) -> None:
        self.recorder = Recorder("test")


def worker_of(env, slots: int, checkpoint: Path, **more) -> EvaluateWorker:
    described = env if isinstance(env, str) else describe(env, where="test")
    worker = EvaluateWorker(Context(), env=described, name="Tiny", slots=slots, **more)
    assert worker.load(str(checkpoint)) == 5
    return worker


def test_the_worker_answers_in_slices_and_names_version_and_task(checkpoint):
    env = functools.partial(TaskEnv, task_id="sort", action="continuous")
    worker = worker_of(env, 2, checkpoint)
    worker.begin(run_seed=0, items=[1, 4, 7], sampled=False)
    told = [worker.advance(0.0)]
    assert told[0] == {"episodes": [], "done": False, "env_steps": 2}
    while not told[-1]["done"]:
        told.append(worker.advance(0.0))
    episodes = [episode for each in told for episode in each["episodes"]]
    assert [episode["number"] for episode in episodes] == [1, 4, 7]
    assert sum(each["env_steps"] for each in told) == 15
    assert {(e["first_version"], e["last_version"], e["task"]) for e in episodes} == {
        (5, 5, "sort")
    }
    worker.begin(run_seed=0, items=[], sampled=False)
    assert worker.advance(0.0) == {"episodes": [], "done": True, "env_steps": 0}
    worker.close()


def test_a_policy_for_another_environment_is_refused(checkpoint):
    worker = worker_of("Hopper-v5", 1, checkpoint)
    with pytest.raises(BadInput, match="observations are not those of the policy"):
        worker.begin(run_seed=0, items=[0], sampled=False)
    worker.close()


def test_episodes_are_recorded_whole_under_their_numbers(checkpoint, tmp_path):
    worker = worker_of(functools.partial(CountEnv, n=4, action="continuous"), 2, checkpoint)
    worker.begin(run_seed=0, items=[0, 1, 2], sampled=True, record=str(tmp_path / "record"))
    while not worker.advance(1.0)["done"]:
        pass
    worker.close()
    recording = Recording(tmp_path / "record")
    assert recording.numbers == (0, 1, 2)
    for episode in recording:
        assert episode.observations("state")[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert episode.steps["terminated"].tolist() == [False, False, False, True]
        assert set(episode.steps["version"]) == {5}
        raw, executed = episode.steps["action"], episode.steps["executed_action"]
        assert np.array_equal(executed, np.clip(raw, -1.0, 1.0))
        assert episode.described["seed"] % 2 == 1
    drawn = np.concatenate([episode.steps["action"] for episode in recording])
    assert (np.abs(drawn) > 1.0).any()


def test_an_interrupted_evaluation_leaves_no_half_episode(checkpoint, tmp_path):
    film = tmp_path / "videos"
    worker = worker_of(functools.partial(FilmedEnv, n=4), 2, checkpoint, film=True)
    worker.begin(0, [0, 1, 2], False, record=str(tmp_path / "record"), videos=str(film))
    for _ in range(5):  # the third episode has begun
        worker.advance(0.0)
    worker.close()
    assert Recording(tmp_path / "record").numbers == (0, 1)
    assert not list((tmp_path / "record" / "episodes").glob(".draft*"))
    assert sorted(path.name for path in film.iterdir()) == ["episode-0000.mp4", "episode-0001.mp4"]


def test_videos_begin_with_the_reset_and_end_with_the_true_last_frame(checkpoint, tmp_path):
    av = pytest.importorskip("av")
    worker = worker_of(functools.partial(FilmedEnv, n=4), 2, checkpoint, film=True)
    worker.begin(run_seed=0, items=[0, 1, 2], sampled=False, videos=str(tmp_path))
    while not worker.advance(1.0)["done"]:
        pass
    worker.close()
    for number in range(3):
        with av.open(str(tmp_path / f"episode-{number:04d}.mp4")) as container:
            assert container.streams.video[0].average_rate == 12
            frames = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
        reds = [float(frame[..., 0].mean()) for frame in frames]
        assert reds == pytest.approx([0, 20, 40, 60, 80], abs=6)


def test_an_environment_that_cannot_draw_is_named(checkpoint):
    with pytest.raises(BadInput, match=r"LuckyEnv.*cannot be filmed"):
        EvaluateWorker(
            Context(), env=describe(LuckyEnv, where="test"), name="Lucky", slots=1, film=True
        )
