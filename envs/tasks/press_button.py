"""Press the button that the instruction names: a gantry over a table with three coloured buttons.

```python
from rlinf_async.envs.rendering import Pixels
from rlinf_async.envs.tasks.press_button import PRESS_BUTTON

pixels = Pixels(cameras=("front", "wrist"), keep=("state", "instruction"))
envs = run.envs(PRESS_BUTTON, count=64, pixels=pixels)
```

Observations: `state` [6], position (m) and velocity (m/s) of the fingertip; `instruction`, bytes
such as "press the red button", zeros after the end; `buttons` [21], of each button the top of its
cap (m), its colour, and how far it is pressed (m). A policy that acts from images is given the
first two. Cameras: `front`, and `wrist`, which moves with the finger.

Action: the speeds of the fingertip along x, y and z, in units of 0.4 m/s.

An episode ends with success when the named button is pressed, without when another one is. The
reward is by how many metres the fingertip came closer to the named button, which changes no
optimal policy (Ng, Harada and Russell 1999, "Policy invariance under reward transformations",
theorem 1, with discount 1), plus 1 at success and less 1 at another button.

In each episode the buttons have places, three of six colours, shades and a light of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.rules import BatchedTask, TaskRules
from rlinf_async.envs.sims import Floats, Sims, Slots
from rlinf_async.execution.spaces import ActionSpec, ArraySpec

# axes: n slots of the cell, B buttons
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.12, 0.10),
    "green": (0.10, 0.65, 0.20),
    "blue": (0.10, 0.30, 0.90),
    "yellow": (0.92, 0.82, 0.10),
    "purple": (0.60, 0.15, 0.70),
    "white": (0.92, 0.92, 0.92),
}
BUTTONS = 3
PRESSED_M = 0.012
"""How far the cap of a pressed button has gone down, of 0.02 m."""
_SENTENCES = [f"press the {name} button".encode() for name in COLOURS]
_LONGEST = max(map(len, _SENTENCES))
INSTRUCTIONS = np.array([list(each.ljust(_LONGEST, b"\0")) for each in _SENTENCES], np.uint8)
"""[colours, length]."""
_PALETTE = np.array(list(COLOURS.values()))
_SHADE = 0.06
_REACH_M = np.array([0.24, 0.2])
"""Buttons lie within so much of the table's middle."""
_APART_M = 0.13
_FINGER_SPREAD_M = np.array([0.22, 0.22, 0.03])
_MAX_SPEED = 0.4


class PressButtonRules(TaskRules):
    """See the module."""

    reports_success = True

    def __init__(self, sims: Sims) -> None:
        super().__init__(sims)
        self.observation = (
            ArraySpec(name="state", shape=(6,), dtype="float32"),
            ArraySpec(name="instruction", shape=(_LONGEST,), dtype="uint8"),
            ArraySpec(name="buttons", shape=(BUTTONS * 7,), dtype="float32"),
        )
        model = sims.model
        self._axes = np.array([model.joint(name).qposadr[0] for name in "xyz"])
        caps = [model.joint(f"cap {b}").qposadr[0] for b in range(BUTTONS)]
        self._depth = slice(caps[0], caps[-1] + 1)
        self._cap_geoms = [model.geom(f"cap {b}").id for b in range(BUTTONS)]
        self._bodies = [model.body(f"button {b}").id for b in range(BUTTONS)]
        self._table = model.geom("table").id
        self._cap_top_m = float(model.geom("cap 0").size[1])
        self._place = sims.vary("body_pos")
        self._rgba = sims.vary("geom_rgba")
        self._light = sims.vary("light_diffuse")
        self._cap_at = sims.derived("geom_xpos")
        self._tip = sims.derived("site_xpos", model.site("fingertip").id)
        self._colours = sims.keep("colours", (BUTTONS,), np.int64)
        self._named = sims.keep("named", dtype=np.int64)
        self._distance = sims.keep("distance")
        self._every = np.arange(sims.count)

    def action_spec(self) -> ActionSpec:
        """Three speeds, -1 to 1."""
        low, high = (-1.0,) * 3, (1.0,) * 3
        return ActionSpec(kind="continuous", shape=(3,), dtype="float32", low=low, high=high)

    def act(self, action: npt.NDArray[Any], slots: Slots | None) -> None:
        """Speeds in m/s, in the order of the actuators."""
        super().act(action * _MAX_SPEED, slots)

    def randomize(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Places and colours of the buttons, shade of the table, brightness of the light."""
        for slot, rng in zip(slots.tolist(), rngs, strict=True):
            self._place[slot, self._bodies, :2] = _scattered(rng)
            colours = rng.permutation(len(COLOURS))[:BUTTONS]
            self._colours[slot] = colours
            shades = _PALETTE[colours] + rng.uniform(-_SHADE, _SHADE, (BUTTONS, 3))
            self._rgba[slot, self._cap_geoms, :3] = np.clip(shades, 0, 1)
            base = self.sims.model.geom_rgba[self._table, :3]
            self._rgba[slot, self._table, :3] = base * rng.uniform(0.8, 1.2)
            self._light[slot] = rng.uniform(0.3, 0.6)

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Where the finger is and which button is named."""
        for slot, rng in zip(slots.tolist(), rngs, strict=True):
            offset = rng.uniform(-_FINGER_SPREAD_M, _FINGER_SPREAD_M)
            offset[2] -= _FINGER_SPREAD_M[2]
            self.sims.qpos[slot, self._axes] = offset
            self._named[slot] = rng.integers(BUTTONS)

    def after_start(self, slots: Slots) -> None:
        """The distance that the first reward compares with."""
        self._distance[slots] = self._distances()[slots]

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """See the module."""
        pressed = self._pressed_m() >= PRESSED_M
        assert outcome.success is not None
        outcome.success[...] = pressed[self._every, self._named]
        outcome.terminated[...] = pressed.any(axis=1)
        distance = self._distances()
        outcome.reward[...] = self._distance - distance
        outcome.reward += outcome.success
        outcome.reward -= outcome.terminated & ~outcome.success
        stepped = slice(None) if slots is None else slots
        self._distance[stepped] = distance[stepped]

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """See the module."""
        out["state"][:, :3] = self._tip
        out["state"][:, 3:] = self.sims.qvel[:, self._axes]
        out["instruction"][...] = INSTRUCTIONS[self._colours[self._every, self._named]]
        buttons = out["buttons"].reshape(-1, BUTTONS, 7)
        buttons[..., :3] = self._tops()
        buttons[..., 3:6] = self._rgba[:, self._cap_geoms, :3]
        buttons[..., 6] = self._pressed_m()

    def _tops(self) -> Floats:
        """[n, B, 3]."""
        tops: Floats = self._cap_at[:, self._cap_geoms]
        tops[..., 2] += self._cap_top_m
        return tops

    def _pressed_m(self) -> Floats:
        """[n, B]."""
        pressed: Floats = -self.sims.qpos[:, self._depth]
        return pressed

    def _distances(self) -> Floats:
        """From the fingertip to the named button's top, [n]."""
        there = self._tops()[self._every, self._named]
        distances: Floats = np.linalg.norm(self._tip - there, axis=1)
        return distances


def _scattered(rng: np.random.Generator) -> Floats:
    """Places on the table [B, 2] that are far enough from each other."""
    while True:
        places = rng.uniform(-_REACH_M, _REACH_M, (BUTTONS, 2))
        between = np.linalg.norm(places[:, None] - places, axis=2)
        if between[np.triu_indices(BUTTONS, 1)].min() >= _APART_M:
            return places


def expert_action(observation: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Actions [n, 3] that reach over the named button and press it, from all observations."""
    buttons = observation["buttons"].reshape(-1, BUTTONS, 7)
    words = (observation["instruction"][:, None] == INSTRUCTIONS).all(axis=2)
    wanted = _PALETTE[words.argmax(axis=1)]
    unlike = np.linalg.norm(buttons[..., 3:6] - wanted[:, None], axis=2)
    there = buttons[np.arange(len(buttons)), unlike.argmin(axis=1), :3]
    error = there - observation["state"][:, :3]
    beside = np.linalg.norm(error[:, :2], axis=1) > 0.012
    # First up and across, then down beyond the cap's top.
    error[:, 2] = np.where(beside, 0.1 - observation["state"][:, 2], -0.05)
    speeds = np.clip(error * 15.0, -1.0, 1.0)
    actions: npt.NDArray[np.float32] = speeds.astype(np.float32)
    return actions


PRESS_BUTTON = BatchedTask(
    name="PressButton",
    model_file=str(Path(__file__).with_name("models") / "press_button.xml"),
    frame_skip=10,
    time_limit=100,
    rules=PressButtonRules,
    fresh=True,
)
