"""Contact forces derived in place and on copies, with and without the C library's batch."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from rlinf_async.envs import mujoco_library
from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.sims import open_sims
from rlinf_async.envs.tasks import batched_task
from rlinf_async.envs.tasks.contact_forces import ContactForces


def forces_of(steps: int) -> list[np.ndarray]:
    cell = BatchedCell(batched_task("Ant-v5"), 4, dtype="float64")
    cell.reset([1, 2, 3, 4])
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (steps, 4, 8)).astype(np.float32)
    return [cell.step(action, lambda slot: slot).observation["state"] for action in actions]


def test_forces_in_place_are_those_on_copies(monkeypatch) -> None:
    in_place = forces_of(60)
    monkeypatch.setattr(mujoco_library, "_native_batch", lambda batch: None)
    on_copies = forces_of(60)
    np.testing.assert_array_equal(in_place, on_copies)
    assert np.count_nonzero(np.stack(in_place)[..., 27:]) > 100


def test_the_batch_behind_the_bindings_is_found() -> None:
    sims = open_sims("ant.xml", 3, frame_skip=5, persistent=True)
    assert mujoco_library._native_batch(sims.batch) is not None


def test_another_version_of_the_bindings_is_not_looked_into(monkeypatch) -> None:
    sims = open_sims("ant.xml", 3, frame_skip=5, persistent=True)
    monkeypatch.setattr(mujoco, "__version__", "4.0.1")
    with pytest.raises(LookupError):
        mujoco_library.ContactForceCall(sims.batch)


def test_a_batch_that_keeps_no_contacts_is_refused() -> None:
    with pytest.raises(ValueError, match="persistent=True"):
        ContactForces(open_sims("ant.xml", 1, frame_skip=5))


def test_the_clock_of_the_stages_is_stopped() -> None:
    sims = open_sims("hopper.xml", 1, frame_skip=1)
    data = mujoco.MjData(sims.model)
    mujoco.mj_step(sims.model, data)
    assert data.timer[mujoco.mjtTimer.mjTIMER_STEP].duration == 0
