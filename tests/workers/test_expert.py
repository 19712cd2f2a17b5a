"""The expert worker: relabelling in place, demonstrations as recordings, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_async.envs.tasks.press_button import PRESS_BUTTON, expert_action
from rlinf_async.errors import BadInput
from rlinf_async.execution.records import Batch, Segment
from rlinf_async.execution.references import describe
from rlinf_async.recording import Recording
from rlinf_async.workers.expert import ExpertWorker


def doubled(observation):
    return 2.0 * observation["state"]


def batch_of(*arrays):
    segments = tuple(
        Segment(
            cell=number,
            batch=0,
            row=number,
            first_slot=0,
            slots=2,
            horizon=3,
            oldest_version=0,
            newest_version=0,
            env_steps=6,
            arrays=each,
        )
        for number, each in enumerate(arrays)
    )
    return Batch(index=0, segments=segments)


def row(seed):
    rng = np.random.default_rng(seed)
    return {
        "obs/state": rng.standard_normal((4, 2, 1)).astype(np.float32),
        "action": np.zeros((3, 2, 1), np.float32),
    }


def test_relabelling_writes_the_experts_actions_into_the_rows():
    rows = [row(0), row(1)]
    told = ExpertWorker(None, expert=doubled).relabel(batch_of(*rows))
    for each in rows:
        np.testing.assert_array_equal(each["action"], 2.0 * each["obs/state"][:3])
    apart = np.mean([np.abs(each["action"]) for each in rows])
    assert told["disagreement"] == pytest.approx(float(apart))


def test_choices_are_compared_by_the_share_that_differs():
    each = {"obs/state": np.ones((4, 2, 1), np.float32), "action": np.zeros((3, 2), np.int64)}
    each["action"][0] = 2

    worker = ExpertWorker(None, expert=lambda seen: 2 * np.ones(len(seen["state"]), np.int64))
    assert worker.relabel(batch_of(each))["disagreement"] == pytest.approx(4 / 6)
    assert (each["action"] == 2).all()


def test_actions_of_another_shape_and_chunks_are_refused():
    worker = ExpertWorker(None, expert=lambda seen: np.zeros((len(seen["state"]), 5)))
    with pytest.raises(BadInput, match="another shape"):
        worker.relabel(batch_of(row(0)))
    with pytest.raises(BadInput, match="chunks"):
        worker.relabel(batch_of({**row(0), "executed": np.ones((3, 2), np.int64)}))


def test_demonstrations_are_whole_episodes_that_can_be_read(tmp_path):
    worker = ExpertWorker(None, expert=expert_action)
    arguments = {"env": describe(PRESS_BUTTON, where="test"), "episodes": 5}
    told = worker.demonstrate(str(tmp_path / "demos"), seed=1, **arguments)
    recording = Recording(tmp_path / "demos")
    assert told == {"episodes": 5.0, "success": 1.0}
    assert len(recording) == 5
    for episode in recording:
        assert episode.described["success_once"]
        assert episode.steps["terminated"][-1]
        seen = {name: episode.observations(name)[:-1] for name in ("state", "instruction")}
        seen["buttons"] = episode.observations("buttons")[:-1]
        np.testing.assert_allclose(episode.steps["action"], expert_action(seen), atol=1e-6)
        # The last observation is that of the pressed button, not of the next episode.
        assert episode.final["obs/buttons"].reshape(3, 7)[:, 6].max() >= 0.012
    worker.demonstrate(str(tmp_path / "demos"), seed=2, **arguments)
    assert len(Recording(tmp_path / "demos")) == 10
    assert len({episode.described["seed"] for episode in Recording(tmp_path / "demos")}) == 10
