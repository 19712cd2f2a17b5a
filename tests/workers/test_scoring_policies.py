"""Evaluations of policies with memory, chunks and a tanh, against a plain loop over Gymnasium."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.seeding import episode_seed
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models import ActorCritic
from rlinf_async.models.loading import LoadedPolicy
from rlinf_async.models.parameters import initial_parameters
from rlinf_async.recording import Recording
from rlinf_async.workers.keeping import RecordingWatcher, instruction_of
from rlinf_async.workers.scoring import MergedPolicies, Scoring, SlotPolicies

ENV = "Hopper-v5"


def policy_of(chunk: int, *, recurrent: bool, squash: bool) -> LoadedPolicy:
    """Random weights, the same ones for the same arguments."""
    spaces = Spaces.from_json(describe_env({"env": ENV, "chunk": chunk})["spaces"])
    record, _, parameters = initial_parameters(
        lambda: ActorCritic(
            spaces,
            hidden=(8,),
            recurrent="gru" if recurrent else None,
            recurrent_units=8,
            squash=squash,
        ),
        seed=(0, 2),
    )
    parameters = 3.0 * parameters
    return LoadedPolicy(record, spaces, parameters, None, {"version": 1})


def scored(slots: int, items, watchers=(), **which):
    cell = make_cell(ENV, slots)
    policies = SlotPolicies(lambda: policy_of(**which), slots, deterministic=True)
    return finished(Scoring(cell, policies, watchers, run_seed=4, items=items), cell)


def finished(scoring: Scoring, cell) -> list[tuple[int, float, int]]:
    """Run to the end; number, return and length of each item."""
    while not scoring.done:
        scoring.step()
    cell.close()
    fields = ("number", "episode_return", "length")
    return sorted(tuple(each[name] for name in fields) for each in scoring.take_finished())


def by_hand(item: int, **which) -> tuple[int, float, int]:
    """The same episode in a loop that anybody would write."""
    env, policy = gymnasium.make(ENV), policy_of(**which)
    seen, _ = env.reset(seed=episode_seed(4, item, 0, stream="evaluate"))
    total, length, ended = 0.0, 0, False
    while not ended:
        chunk = policy.act({"state": seen.astype(np.float32)[None]})[0]
        for action in chunk if which["chunk"] > 1 else [chunk]:
            seen, reward, terminated, truncated, _ = env.step(action)
            total, length = total + float(reward), length + 1
            ended = terminated or truncated
            if ended:
                break
    env.close()
    return item, total, length


KINDS = [
    {"chunk": 1, "recurrent": True, "squash": False},
    {"chunk": 3, "recurrent": False, "squash": True},
    {"chunk": 3, "recurrent": True, "squash": True},
]


@pytest.mark.parametrize("which", KINDS)
def test_scores_are_those_of_a_plain_loop_in_any_number_of_slots(which):
    expected = [by_hand(item, **which) for item in range(4)]
    for slots in (1, 3):
        found = scored(slots, range(4), **which)
        assert [each[::2] for each in found] == [each[::2] for each in expected]
        assert [each[1] for each in found] == pytest.approx([each[1] for each in expected])
    assert scored(1, range(4), **which) == scored(3, range(4), **which)


@pytest.mark.parametrize("which", KINDS)
def test_merged_calls_score_the_same_but_for_rounding_and_repeat(which):
    def merged() -> list[tuple[int, float, int]]:
        cell = make_cell(ENV, 3)
        policies = MergedPolicies(policy_of(**which), 3, deterministic=True, run_seed=4)
        return finished(Scoring(cell, policies, (), run_seed=4, items=range(5)), cell)

    found, alone = merged(), scored(1, range(5), **which)
    assert [each[::2] for each in found] == [each[::2] for each in alone]
    assert [each[1] for each in found] == pytest.approx([each[1] for each in alone], rel=1e-3)
    assert merged() == found


def test_a_memory_would_change_the_scores_if_it_were_kept(monkeypatch):
    which = {"chunk": 1, "recurrent": True, "squash": False}
    right = scored(1, range(3), **which)
    monkeypatch.setattr(LoadedPolicy, "reset", lambda self, finished=None: None)
    assert scored(1, range(3), **which) != right


def test_chunks_of_a_squashed_policy_are_recorded_as_executed(tmp_path: Path):
    which = {"chunk": 3, "recurrent": False, "squash": True}
    policy, cell = policy_of(**which), make_cell(ENV, 1)
    watcher = RecordingWatcher(
        tmp_path,
        spaces=policy.spaces,
        action=cell.spaces.action,
        env=ENV,
        tasks=cell.tasks,
        fps=125.0,
        version=1,
    )
    cell.close()
    ((_, total, length),) = scored(1, [2], (watcher,), **which)
    episode = Recording(tmp_path).episode(2)
    assert Recording(tmp_path).fps == 125.0 / 3
    steps = episode.steps
    assert episode.described["return"] == pytest.approx(total)
    assert steps["executed"].sum() == episode.described["simulated_steps"] == length
    assert set(steps["executed"][:-1]) == {3}
    assert steps["executed_action"].shape[1:] == (3, 3)
    assert np.allclose(steps["executed_action"], np.tanh(steps["action"]), atol=1e-6)
    tail = steps["reward"][-1, int(steps["executed"][-1]) :]
    assert not tail.any()


def test_an_instruction_is_the_text_of_its_bytes():
    text = np.zeros(32, np.uint8)
    text[:9] = np.frombuffer(b"press red", np.uint8)
    assert instruction_of({"instruction": text}) == "press red"
    assert instruction_of({"instruction": np.zeros(4, np.int64)}) == ""
    assert instruction_of({}) == ""
