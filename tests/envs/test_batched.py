"""Tasks on `mujoco.batch` against Gymnasium's classes, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.mujoco_log import log_to_stderr_only
from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.tasks import BATCHED_IDS, batched_task
from rlinf_async.envs.tasks.hopper import HopperRules
from rlinf_async.errors import BadInput
from rlinf_async.execution import references
from tests.fixtures.seeds import next_seed

SLOTS = 2
# The seeds are those of slots in episodes; long ones as `episode_seed` gives.
FIRST_SEEDS = [2**63 + 5, 7]


class Reference:
    """Gymnasium's environments of one id, stepped beside a cell."""

    def __init__(self, env_id: str) -> None:
        log_to_stderr_only()
        self.envs = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(SLOTS)]
        self.starts = np.stack(
            [env.reset(seed=seed)[0] for env, seed in zip(self.envs, FIRST_SEEDS, strict=True)]
        )

    def close(self) -> None:
        for env in self.envs:
            env.close()


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> Iterator[Reference]:
    made = Reference(request.param)
    yield made
    made.close()


def compare(
    cell: BatchedCell, reference: Reference, *, steps: int, scale: float, seed: int
) -> tuple[int, int]:
    """Step both with the same actions; every number must be equal. Returns (terms, truncs)."""
    space = reference.envs[0].action_space
    rng, terms, truncs, given = np.random.default_rng(seed), 0, 0, {}

    def next_seed(slot: int) -> int:
        given[slot] = int(rng.integers(2**63))
        return given[slot]

    for _ in range(steps):
        actions = scale * rng.uniform(space.low, space.high, (SLOTS, *space.shape))
        actions = actions.astype(np.float32)
        result = cell.step(actions, next_seed)
        for slot, env in enumerate(reference.envs):
            observation, reward, terminated, truncated, _ = env.step(actions[slot])
            assert result.reward[slot] == reward
            assert (result.terminated[slot], result.truncated[slot]) == (terminated, truncated)
            terms, truncs = terms + terminated, truncs + truncated
            if terminated or truncated:
                row = result.finished.tolist().index(slot)
                np.testing.assert_array_equal(result.final_observation["state"][row], observation)
                observation, _ = env.reset(seed=given[slot])
            else:
                assert slot not in result.finished
            np.testing.assert_array_equal(result.observation["state"][slot], observation)
    return terms, truncs


@pytest.mark.parametrize(
    ("reference", "steps", "scale", "ends"),
    [
        ("Ant-v5", 1100, 1.0, (3, 0)),
        ("HalfCheetah-v5", 2005, 1.0, (0, 4)),
        ("Hopper-v5", 1100, 0.3, (13, 0)),
        ("Humanoid-v5", 1050, 1.0, (33, 0)),
        ("HumanoidStandup-v5", 1050, 1.0, (0, 2)),
        ("InvertedDoublePendulum-v5", 1100, 0.2, (33, 0)),
        ("InvertedPendulum-v5", 1100, 0.2, (33, 0)),
        ("Pusher-v5", 1050, 1.0, (0, 20)),
        ("Reacher-v5", 1050, 1.0, (0, 42)),
        ("Swimmer-v5", 2005, 1.0, (0, 4)),
        ("Walker2d-v5", 1100, 0.5, (13, 0)),
    ],
    indirect=["reference"],
)
def test_steps_and_resets_are_bit_identical_to_gymnasium(reference, steps, scale, ends) -> None:
    cell = BatchedCell(batched_task(reference.envs[0].spec.id), SLOTS, dtype="float64")
    starts = cell.reset(FIRST_SEEDS)["state"]
    np.testing.assert_array_equal(starts, reference.starts)
    assert starts.dtype == reference.starts.dtype
    terms, truncs = compare(cell, reference, steps=steps, scale=scale, seed=1)
    assert terms >= ends[0]
    assert truncs >= ends[1]


@pytest.mark.parametrize("reference", ["Ant-v5"], indirect=True)
def test_contact_forces_stay_identical_across_the_time_limit(reference) -> None:
    cell = BatchedCell(batched_task("Ant-v5"), SLOTS, dtype="float64")
    cell.reset(FIRST_SEEDS)
    # Hardly any motion: the ants stand on the ground until the limit, contacts in every step.
    terms, truncs = compare(cell, reference, steps=1020, scale=0.02, seed=2)
    assert (terms, truncs) == (0, SLOTS)
    forces = cell.step(np.zeros((SLOTS, 8), np.float32), next_seed).observation["state"][:, 27:]
    assert np.count_nonzero(forces, axis=1).all()


@pytest.mark.parametrize("reference", ["Hopper-v5"], indirect=True)
def test_all_slots_begin_again_when_the_whole_cell_is_reset(reference) -> None:
    cell = BatchedCell(batched_task("Hopper-v5"), SLOTS, dtype="float64")
    cell.reset([1, 2])
    for _ in range(10):
        cell.step(np.ones((SLOTS, 3), np.float32), lambda slot: slot)
    np.testing.assert_array_equal(cell.reset(FIRST_SEEDS)["state"], reference.starts)
    compare(cell, reference, steps=30, scale=0.5, seed=3)


@pytest.mark.parametrize("env_id", BATCHED_IDS)
def test_spaces_and_time_limit_are_those_of_gymnasium(env_id) -> None:
    theirs = gymnasium.make(env_id, disable_env_checker=True)
    about = describe_env(env_id)
    observation, action = about["spaces"]["observation"], about["spaces"]["action"]
    assert [(o["name"], tuple(o["shape"]), o["dtype"]) for o in observation] == [
        ("state", theirs.observation_space.shape, "float32")
    ]
    assert tuple(action["shape"]) == theirs.action_space.shape
    assert (list(action["low"]), list(action["high"])) == (
        theirs.action_space.low.tolist(),
        theirs.action_space.high.tolist(),
    )
    assert about["time_limit"] == theirs.spec.max_episode_steps
    assert about["path"] == "batched"
    theirs.close()


def test_rows_hold_the_float32_of_gymnasium_observations() -> None:
    exact = BatchedCell(batched_task("HalfCheetah-v5"), SLOTS, dtype="float64")
    rows = make_cell("HalfCheetah-v5", SLOTS)
    expected = exact.reset(FIRST_SEEDS)["state"].astype(np.float32)
    got = rows.reset(FIRST_SEEDS)["state"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


def test_actions_are_clipped_to_the_bounds() -> None:
    wild, tame = make_cell("Hopper-v5", 1), make_cell("Hopper-v5", 1)
    for cell in (wild, tame):
        cell.reset([3])
    far = wild.step(np.array([[7.0, -9.0, 0.5]], np.float32), next_seed)
    edge = tame.step(np.array([[1.0, -1.0, 0.5]], np.float32), next_seed)
    np.testing.assert_array_equal(far.observation["state"], edge.observation["state"])
    assert far.reward == edge.reward


def test_a_result_is_not_changed_by_later_steps() -> None:
    cell = make_cell("InvertedPendulum-v5", 4)
    first = cell.reset(range(4))["state"]
    kept = first.copy()
    result = cell.step(np.full((4, 1), 3.0, np.float32), next_seed)
    copies = result.observation["state"].copy(), result.reward.copy(), result.terminated.copy()
    for _ in range(20):
        cell.step(np.full((4, 1), -3.0, np.float32), next_seed)
    np.testing.assert_array_equal(first, kept)
    for array, copy in zip(
        (result.observation["state"], result.reward, result.terminated), copies, strict=True
    ):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("env_id", BATCHED_IDS)
def test_numbers_do_not_depend_on_how_slots_are_put_into_cells(env_id) -> None:
    whole, left, right = (make_cell(env_id, n) for n in (4, 3, 1))
    seeds = [11, 12, 13, 14]
    whole.reset(seeds), left.reset(seeds[:3]), right.reset(seeds[3:])
    rng, spec = np.random.default_rng(0), whole.spaces.action
    for _ in range(30):
        actions = rng.uniform(spec.low, spec.high, (4, *spec.shape)).astype(np.float32)
        together = whole.step(actions, lambda slot: slot)
        apart = (
            left.step(actions[:3], lambda slot: slot),
            right.step(actions[3:], lambda slot: slot + 3),
        )
        np.testing.assert_array_equal(
            together.observation["state"],
            np.concatenate([part.observation["state"] for part in apart]),
        )
        np.testing.assert_array_equal(
            together.reward, np.concatenate([part.reward for part in apart])
        )


def test_a_task_of_the_user_travels_as_a_record() -> None:
    task = BatchedTask(
        name="ShortHopper",
        model_file="hopper.xml",
        frame_skip=2,
        time_limit=4,
        rules=HopperRules,
    )
    reference = references.describe(task, where="test")
    assert describe_env(reference)["time_limit"] == 4
    cell = make_cell(reference, 2)
    cell.reset([1, 2])
    results = [cell.step(np.zeros((2, 3), np.float32), next_seed) for _ in range(8)]
    assert [result.truncated.tolist() for result in results] == (
        [[False] * 2] * 3 + [[True] * 2]
    ) * 2


def test_a_broken_model_file_is_bad_input(tmp_path) -> None:
    path = tmp_path / "broken.xml"
    path.write_text("<mujoco><nonsense/></mujoco>")
    task = BatchedTask(
        name="Broken", model_file=str(path), frame_skip=1, time_limit=None, rules=HopperRules
    )
    with pytest.raises(BadInput, match=r"Broken.*model cannot be built"):
        make_cell(references.describe(task, where="test"), 1)


def test_a_wrong_number_of_actions_or_seeds_is_refused() -> None:
    cell = make_cell("HalfCheetah-v5", 2)
    with pytest.raises(ValueError, match="expected 2 seeds, got 1"):
        cell.reset([1])
    cell.reset([1, 2])
    with pytest.raises(ValueError, match=r"expected shape \(2, 6\), got \(6,\)"):
        cell.step(np.zeros(6, np.float32), next_seed)


def test_mujoco_writes_no_log_into_the_working_directory(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    cell = BatchedCell(batched_task("Hopper-v5"), 2)
    cell.reset([1, 2])
    cell.sims.qvel[1] = np.nan
    result = cell.step(np.zeros((2, 3), np.float32), functools.partial(max, 5))
    assert np.isfinite(result.observation["state"]).all()
    assert list(tmp_path.iterdir()) == []
    assert "unstable" in "".join(capfd.readouterr())
