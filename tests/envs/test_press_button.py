"""The tabletop task: its words, its ends, what varies, and that it can be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.rendering import Pixels
from rlinf_async.envs.rendering.gl import choose_gl
from rlinf_async.envs.tasks.press_button import (
    BUTTONS,
    COLOURS,
    INSTRUCTIONS,
    PRESS_BUTTON,
    PRESSED_M,
    expert_action,
)
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe

EPISODES = 100


def retire(slot: int) -> None:
    return None


def play(cell: Any, observation: Mapping[str, Any], choose: Any) -> tuple[Any, Any, Any]:
    """Success [n], returns [n] and lengths [n] of one episode in every slot."""
    n = cell.slots
    success, returns, lengths = np.zeros(n, bool), np.zeros(n), np.zeros(n, int)
    running = np.ones(n, bool)
    while running.any():
        result = cell.step(choose(observation), retire)
        observation = result.observation
        lengths += running
        returns += result.reward
        success |= result.success
        running[result.finished] = False
    return success, returns, lengths


def test_the_expert_presses_the_named_button() -> None:
    cell = BatchedCell(PRESS_BUTTON, EPISODES)
    success, returns, lengths = play(cell, cell.reset(range(1000, 1000 + EPISODES)), expert_action)
    assert success.mean() >= 0.95
    assert returns[success].min() > 1.0
    assert lengths[success].max() < PRESS_BUTTON.time_limit


def test_another_button_ends_the_episode_without_success() -> None:
    cell = BatchedCell(PRESS_BUTTON, 20)
    first = cell.reset(range(20))
    named = first["instruction"]
    colours = first["buttons"].reshape(-1, BUTTONS, 7)[..., 3:6]
    palette = np.array(list(COLOURS.values()))
    present = np.linalg.norm(colours[:, :, None] - palette, axis=3).argmin(axis=2)
    wrong = np.array(
        [
            next(c for c in row if (INSTRUCTIONS[c] != words).any())
            for row, words in zip(present, named, strict=True)
        ]
    )

    def misled(observation: Mapping[str, Any]) -> Any:
        return expert_action({**observation, "instruction": INSTRUCTIONS[wrong]})

    success, returns, lengths = play(cell, first, misled)
    ended_early = lengths < PRESS_BUTTON.time_limit
    assert ended_early.mean() >= 0.95
    assert not success[ended_early].any()
    assert returns[ended_early].max() < 0.0


def test_standing_still_is_truncated_and_earns_next_to_nothing() -> None:
    cell = BatchedCell(PRESS_BUTTON, 2)
    still = np.zeros((2, 3), np.float32)
    success, returns, lengths = play(cell, cell.reset([1, 2]), lambda _: still)
    assert not success.any()
    assert (lengths == PRESS_BUTTON.time_limit).all()
    assert np.abs(returns).max() < 0.005


def test_episodes_differ_and_follow_from_their_seeds() -> None:
    cell = BatchedCell(PRESS_BUTTON, 60)
    seen = cell.reset(range(60))
    again = BatchedCell(PRESS_BUTTON, 1).reset([7])
    for name, values in seen.items():
        np.testing.assert_array_equal(values[7], again[name][0])
    buttons = seen["buttons"].reshape(60, BUTTONS, 7)
    places = buttons[..., :2]
    assert len(np.unique(places.reshape(-1, 2), axis=0)) == 60 * BUTTONS
    apart = np.linalg.norm(places[:, :, None] - places[:, None], axis=3)
    assert apart[:, *np.triu_indices(BUTTONS, 1)].min() > 0.12
    assert {bytes(words).rstrip(b"\0").decode() for words in seen["instruction"]} == {
        f"press the {name} button" for name in COLOURS
    }
    assert (buttons[..., 6] < PRESSED_M / 4).all()
    assert (seen["state"][:, 2] > buttons[..., 2].max(axis=1)).all()


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    cell = BatchedCell(PRESS_BUTTON, 4)
    observation = cell.reset([1, 2, 3, 4])
    for _ in range(6):
        observation = cell.step(expert_action(observation), retire).observation
    saved = cell.save_state()
    first = cell.step(expert_action(observation), retire)
    other = BatchedCell(PRESS_BUTTON, 4)
    other.reset([5, 6, 7, 8])
    restored = other.restore_state(saved)
    second = other.step(expert_action(restored), retire)
    np.testing.assert_array_equal(first.reward, second.reward)
    for name in observation:
        np.testing.assert_array_equal(restored[name], observation[name])
        np.testing.assert_array_equal(first.observation[name], second.observation[name])


def test_cameras_see_the_colours_of_each_episode() -> None:
    try:
        gl = choose_gl()
    except BadInput as missing:
        pytest.skip(str(missing))
    pixels = Pixels(cameras=("front", "wrist"), keep=("state", "instruction"), gl=gl)
    request = {
        "env": describe(PRESS_BUTTON, where="test"),
        "pixels": describe(pixels, where="test"),
    }
    names = [spec["name"] for spec in describe_env(request)["spaces"]["observation"]]
    assert names == ["front", "wrist", "state", "instruction"]
    n = 16
    cell, plain = make_cell(request, n), BatchedCell(PRESS_BUTTON, n)
    front = cell.reset(range(n))["front"].astype(int)
    colours = plain.reset(range(n))["buttons"].reshape(n, BUTTONS, 7)[..., 3:6]
    red, green, blue = np.moveaxis(front, -1, 0)
    seen = {
        "red": (red > 2.5 * green) & (red > 2.5 * blue),
        "green": (green > 2 * red) & (green > 1.5 * blue),
        "blue": (blue > 2 * red) & (blue > 1.5 * green),
    }
    for name, mask in seen.items():
        present = (np.linalg.norm(colours - COLOURS[name], axis=2) < 0.15).any(axis=1)
        assert 0 < present.sum() < n
        np.testing.assert_array_equal(mask.any(axis=(1, 2)), present, err_msg=name)
    cell.close()


def test_light_that_varies_is_seen() -> None:
    try:
        gl = choose_gl()
    except BadInput as missing:
        pytest.skip(str(missing))
    request = {
        "env": describe(PRESS_BUTTON, where="test"),
        "pixels": describe(Pixels(gl=gl), where="test"),
        "checks": False,
    }
    cell = make_cell(request, 1)
    before = cell.reset([3])["image"]
    cell.inner.sims.vary("light_diffuse")[...] = 0.0
    after = cell.observe(None)["image"]
    assert after.mean() < 0.8 * before.mean()
    cell.close()
