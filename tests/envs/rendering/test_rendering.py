"""Images from poses are those of direct rendering, and come when somebody will see them."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.rendering import Pixels
from rlinf_async.envs.rendering.gl import choose_gl, turn
from rlinf_async.envs.rendering.poses import SinglePoses, shapes_of
from rlinf_async.errors import BadInput, PeerTimeout
from rlinf_async.execution.references import describe

try:
    GL = choose_gl()
except BadInput as missing:
    pytest.skip(str(missing), allow_module_level=True)

N = 3


def drawn(env: Any, count: int = N, **options: Any) -> Any:
    pixels = Pixels(**{"height": 48, "width": 64, "gl": GL, **options})
    described = env if isinstance(env, str) else describe(env, where="test")
    request = {"env": described, "pixels": describe(pixels, where="test"), "checks": False}
    return make_cell(request, count)


def directly(model: Any, data: Any, camera: str, *, fast: bool) -> np.ndarray:
    """What MuJoCo's own renderer makes of a simulation."""
    import mujoco
    from mujoco.rendering.classic import gl_context

    gl_context.GLContext = importlib.import_module(f"mujoco.{GL}").GLContext
    model = copy.deepcopy(model)
    model.vis.global_.offwidth, model.vis.global_.offheight = 64, 48
    if fast:
        model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
    with mujoco.Renderer(model, 48, 64) as renderer:
        renderer.update_scene(data, camera)
        if fast:
            flags = mujoco.mjtRndFlag
            for flag in (flags.mjRND_SHADOW, flags.mjRND_REFLECTION, flags.mjRND_SKYBOX):
                renderer.scene.flags[flag] = 0
        return renderer.render().copy()


def ask(slot: int) -> int:
    return 10 + slot


@pytest.mark.parametrize("quality", ["fast", "full"])
def test_images_of_single_environments_are_those_of_direct_rendering(quality: str) -> None:
    make = functools.partial(gymnasium.make, id="Hopper-v5", frame_skip=5)
    cell = drawn(make, quality=quality)
    cell.reset([1, 2, 3])
    rng = np.random.default_rng(0)
    for _ in range(4):
        action = rng.uniform(-1, 1, (N, 3)).astype("float32")
        image = cell.step(action, ask).observation["image"]
        assert image.shape == (N, 48, 64, 3)
        assert image.dtype == np.uint8
    for slot, env in enumerate(cell.inner.environments):
        inner = env.unwrapped
        expected = directly(inner.model, inner.data, "track", fast=quality == "fast")
        np.testing.assert_array_equal(image[slot], expected)
    assert len({image[slot].tobytes() for slot in range(N)}) == N
    cell.close()


def test_a_batched_task_looks_like_the_same_task_of_gymnasium() -> None:
    batched, single = (
        drawn("HalfCheetah-v5"),
        drawn(functools.partial(gymnasium.make, id="HalfCheetah-v5")),
    )
    rng = np.random.default_rng(1)
    for one, other in [(batched.reset([4, 5, 6]), single.reset([4, 5, 6]))]:
        np.testing.assert_array_equal(one["image"], other["image"])
    for _ in range(5):
        action = rng.uniform(-1, 1, (N, 6)).astype("float32")
        one, other = (cell.step(action, ask).observation["image"] for cell in (batched, single))
        np.testing.assert_array_equal(one, other)


def test_a_model_that_was_changed_at_reset_is_seen_as_it_is() -> None:
    make = functools.partial(gymnasium.make, id="Reacher-v5")
    cell = drawn(make)
    before = cell.reset([1, 2, 3])["image"]
    inner = cell.inner.environments[1].unwrapped
    inner.model.geom_rgba[:, :3] = [1.0, 0.0, 0.0]
    inner.model.body_pos[-1] += 0.05
    import mujoco

    mujoco.mj_forward(inner.model, inner.data)
    after = cell.observe(None)["image"]
    expected = directly(inner.model, inner.data, "0" if inner.model.ncam else -1, fast=True)
    np.testing.assert_array_equal(after[0], before[0])
    assert (after[1] != before[1]).any()
    np.testing.assert_array_equal(after[1], expected)


def test_the_last_image_of_an_episode_is_kept_and_the_next_one_begins() -> None:
    cell = drawn("Hopper-v5", keep=("state",))
    plain = make_cell({"env": "Hopper-v5"}, N)
    seen, state = cell.reset([1, 2, 3]), plain.reset([1, 2, 3])
    np.testing.assert_array_equal(seen["state"], state["state"])
    rng, ended = np.random.default_rng(2), 0
    for _ in range(60):
        action = rng.uniform(-1, 1, (N, 3)).astype("float32")
        result, other = (each.step(action, ask) for each in (cell, plain))
        np.testing.assert_array_equal(result.observation["state"], other.observation["state"])
        if len(result.finished):
            ended += 1
            slot = int(result.finished[0])
            last, first = result.final_observation["image"][0], result.observation["image"][slot]
            assert (last != first).any()
            np.testing.assert_array_equal(
                result.final_observation["state"], other.final_observation["state"]
            )
            again = drawn("Hopper-v5").begin(np.array([0]), [10 + slot])["image"][0]
            np.testing.assert_array_equal(first, again)
    assert ended


def test_chunks_are_drawn_at_their_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = drawn("HalfCheetah-v5")
    single = drawn("HalfCheetah-v5")
    for each in (cell, single):
        each.reset([1, 2, 3])
    count = 0
    draw = cell._drawer.draw

    def counting(*arguments: Any) -> None:
        nonlocal count
        count += 1
        draw(*arguments)

    monkeypatch.setattr(cell._drawer, "draw", counting)
    action = np.random.default_rng(3).uniform(-1, 1, (N, 5, 6)).astype("float32")
    image = cell.chunk_step(action, ask).observation["image"]
    assert count == N
    for c in range(5):
        expected = single.step(action[:, c], ask).observation["image"]
    np.testing.assert_array_equal(image, expected)


def test_only_some_slots_and_retired_ones() -> None:
    cell = drawn("Hopper-v5")
    first = cell.reset([1, 2, 3])["image"]
    action = np.ones((N, 3), np.float32)
    part = cell.step(action, ask, slots=np.array([1])).observation["image"]
    np.testing.assert_array_equal(part[[0, 2]], first[[0, 2]])
    assert (part[1] != first[1]).any()
    while True:
        result = cell.step(action, lambda slot: None)
        if len(result.finished) == N or not cell._live.any():
            break
    assert not cell._live.any()


def test_saved_states_draw_the_same() -> None:
    cell = drawn("Hopper-v5")
    cell.reset([1, 2, 3])
    action = np.full((N, 3), 0.3, np.float32)
    cell.step(action, ask)
    saved = cell.save_state()
    expected = cell.step(action, ask).observation["image"]
    cell.reset([7, 8, 9])
    cell.restore_state(saved)
    np.testing.assert_array_equal(cell.step(action, ask).observation["image"], expected)


def test_several_cameras_are_observations_of_their_names() -> None:
    cell = drawn("HalfCheetah-v5", cameras=("track", "free"), keep=("state",))
    names = [spec.name for spec in cell.spaces.observation]
    assert names == ["track", "free", "state"]
    seen = cell.reset([1, 2, 3])
    assert (seen["track"] != seen["free"]).any()


def test_a_description_tells_what_drew_it() -> None:
    request = {"env": "HalfCheetah-v5", "pixels": describe(Pixels(height=32, width=32), where="")}
    told = describe_env(request)
    assert told["gl"] in ("egl", "osmesa")
    assert told["spaces"]["observation"][0]["shape"] == (32, 32, 3)
    assert describe_env("HalfCheetah-v5")["gl"] is None


def test_another_thread_may_not_draw() -> None:
    cell = drawn("HalfCheetah-v5", count=1)
    cell.reset([1])
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            cell.observe(None)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "in the thread that made it" in str(errors[0])


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no camera 'trak'.*track"):
        drawn("HalfCheetah-v5", cameras=("trak",))
    with pytest.raises(BadInput, match=r"no observation 'stat' to keep.*state"):
        drawn("HalfCheetah-v5", keep=("stat",))
    with pytest.raises(BadInput, match="no MuJoCo model"):
        drawn("CartPole-v1")
    with pytest.raises(BadInput, match="size"):
        Pixels(height=0)


def test_runs_without_images_never_touch_opengl() -> None:
    code = (
        "from rlinf_async.envs.registry import make_cell\n"
        "make_cell('HalfCheetah-v5', 2).reset([1, 2])\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([n for n in ('libEGL', 'libOSMesa', 'libGL.so', 'libgallium') if n in maps])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"


def test_a_backend_that_cannot_draw_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    choose_gl.cache_clear()
    with pytest.raises(BadInput, match=r"nonsense: .*apt-get install libegl1"):
        choose_gl()
    monkeypatch.undo()
    choose_gl.cache_clear()
    assert choose_gl() == GL


def test_cells_of_one_model_share_a_context_and_others_have_their_own() -> None:
    first, second = drawn("Hopper-v5"), drawn("Hopper-v5", count=1)
    other = drawn("HalfCheetah-v5", count=1)
    assert first._drawer._renderer is second._drawer._renderer
    assert other._drawer._renderer is not first._drawer._renderer
    image = first.reset([1, 2, 3])["image"]
    other.reset([1])
    np.testing.assert_array_equal(second.reset([2])["image"][0], image[1])
    first.close()
    np.testing.assert_array_equal(second.reset([3])["image"][0], image[2])
    second.close()
    second.close()
    other.close()


def test_instances_of_a_model_are_told_from_other_models() -> None:
    import mujoco

    spheres = "<mujoco><worldbody><geom size='1'/><site/></worldbody></mujoco>"
    boxes = "<mujoco><worldbody><geom type='box' size='1 1 1'/></worldbody></mujoco>"
    one, same, other = map(mujoco.MjModel.from_xml_string, (spheres, spheres, boxes))
    same.geom_rgba[...] = 0.5
    same.site_pos[...] = 3.0
    assert shapes_of(one) == shapes_of(same)
    assert shapes_of(one) != shapes_of(other)


def test_a_cell_of_different_models_is_refused() -> None:
    envs = [gymnasium.make(name) for name in ("Hopper-v5", "Walker2d-v5")]
    with pytest.raises(BadInput, match=r"different models.*--cell 1"):
        SinglePoses(envs, who="environment 'mixed'")
    for env in envs:
        env.close()


def test_contexts_are_made_one_after_the_other_and_the_wait_is_limited() -> None:
    with (
        turn(),
        pytest.raises(PeerTimeout, match=r"0\.05 s waiting for another process"),
        turn(0.05),
    ):
        pass
    with turn(5.0):
        pass
