"""Cameras see the simulations that are scored, and do not disturb them."""

import functools
import itertools

import gymnasium
import numpy as np
import pytest

from rlinf_async.envs.filming import GymnasiumCamera, PoseCamera, make_filmed_cell, steps_per_s
from rlinf_async.envs.registry import make_cell
from rlinf_async.envs.rendering import Pixels
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe
from tests.fixtures.envs import CountEnv, FilmedEnv, LuckyEnv


def described(env):
    return describe(env, where="test")


@pytest.fixture(scope="module", autouse=True)
def _can_draw():
    """Nothing here makes sense where no OpenGL backend works."""
    from rlinf_async.envs.rendering.gl import choose_gl

    try:
        choose_gl()
    except BadInput as reason:
        pytest.skip(str(reason))


def run(cell, camera, steps: int):
    """Rewards and pictures of slot 1, under the same actions every time."""
    rng, rewards, pictures = np.random.default_rng(0), [], []
    cell.begin(np.arange(2), [5, 7])
    for _ in range(steps):
        action = rng.uniform(-1, 1, (2, *cell.spaces.action.shape)).astype(np.float32)
        rewards.append(cell.step(action, lambda slot: 9).reward)
        if camera is not None:
            pictures.append(camera.frame(1))
    return np.array(rewards), pictures


@pytest.mark.parametrize("env", ["HalfCheetah-v5", {"env": "HalfCheetah-v5", "time_limit": 5}])
def test_filming_changes_no_bit(env):
    plain = make_cell(env, 2)
    expected, _ = run(plain, None, 12)
    plain.close()
    cell, camera = make_filmed_cell(env, 2)
    found, pictures = run(cell, camera, 12)
    assert isinstance(camera, PoseCamera)
    assert found.tobytes() == expected.tobytes()
    assert camera.fps == 20.0
    assert {picture.shape for picture in pictures} == {(480, 480, 3)}
    moved = [np.abs(one.astype(int) - two).sum() for one, two in itertools.pairwise(pictures)]
    assert all(moved)
    camera.close()
    cell.close()


def test_a_mujoco_environment_of_gymnasium_is_drawn_from_its_poses_too():
    make = functools.partial(gymnasium.make, id="InvertedPendulum-v5")
    cell, camera = make_filmed_cell(described(make), 2)
    batch, batch_camera = make_filmed_cell("InvertedPendulum-v5", 2)
    assert isinstance(camera, PoseCamera)
    _, one = run(cell, camera, 3)
    _, other = run(batch, batch_camera, 3)
    for mine, theirs in zip(one, other, strict=True):
        assert np.array_equal(mine, theirs)
    for each in (camera, batch_camera, cell, batch):
        each.close()


def test_any_other_environment_draws_itself():
    cell, camera = make_filmed_cell(described(FilmedEnv), 2)
    assert isinstance(camera, GymnasiumCamera)
    assert camera.fps == 12.0
    cell.begin(np.arange(2), [1, 2])
    cell.step(np.zeros((2, 1), np.float32), lambda slot: 3, slots=np.array([1]))
    assert camera.frame(0)[0, 0].tolist() == [0, 0, 0]
    assert camera.frame(1)[0, 0].tolist() == [20, 0, 0]
    cell.close()


class Mute(FilmedEnv):
    """Takes the render mode and draws nothing."""

    def render(self):
        return None


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(BadInput, match=r"LuckyEnv'.*cannot be filmed.*let its factory take"):
        make_filmed_cell(described(LuckyEnv), 1)
    cell, camera = make_filmed_cell(described(Mute), 1)
    cell.begin(np.arange(1), [1])
    with pytest.raises(BadInput, match=r"Mute'.*gave no picture"):
        camera.frame(0)
    cell.close()


def test_the_rate_is_known_without_a_camera():
    for env, expected in (
        (described(CountEnv), None),
        ("Hopper-v5", 125.0),
        (described(FilmedEnv), 12.0),
    ):
        cell = make_cell(env, 1)
        assert steps_per_s(cell) == expected
        cell.close()


def test_a_cell_that_observes_pixels_is_filmed_beside_them():
    pixels = described(Pixels(height=16, width=24))
    cell, camera = make_filmed_cell({"env": "InvertedPendulum-v5", "pixels": pixels}, 2)
    seen = cell.begin(np.arange(2), [5, 7])
    assert camera.frame(0).shape == (480, 480, 3)
    again = cell.begin(np.arange(2), [5, 7])
    assert seen["image"].shape == (2, 16, 24, 3)
    assert np.array_equal(seen["image"], again["image"])
    camera.close()
    cell.close()
