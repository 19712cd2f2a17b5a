"""LIBERO (Liu et al., 2023): libero/<set>/<number>, such as libero/libero_spatial/3.

Observations: `agentview_image` and `robot0_eye_in_hand_image` [128, 128, 3], `robot0_eef_pos` [3],
`robot0_eef_quat` [4], `robot0_gripper_qpos` [2], and `instruction` in bytes. Meshes and scenes come
from outside the package: their folder is $LIBERO_ASSETS, or what LIBERO's own configuration says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput, nearest

ASSETS_VARIABLE = "LIBERO_ASSETS"
HORIZON = 600
_IMAGES = ("agentview_image", "robot0_eye_in_hand_image")
_NUMBERS = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
_TEXT_BYTES = 160


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments of one task of a set; see `suites`.

    Raises:
        BadInput: no such set or task, or the assets are not there.
    """
    from libero.libero import benchmark, get_libero_path

    name, _, number = task.partition("/")
    known = benchmark.get_benchmark_dict()
    if name not in known or not number.isdigit():
        raise BadInput(
            f"environment 'libero/{task}'",
            "no such task",
            expected="libero/<set>/<number>",
            fix=nearest(name, known),
        )
    chosen = known[name]()
    if int(number) >= chosen.n_tasks:
        raise BadInput(
            f"environment 'libero/{task}'", "no such number", expected=f"0 to {chosen.n_tasks - 1}"
        )
    assets = Path(os.environ.get(ASSETS_VARIABLE) or get_libero_path("assets"))
    if not assets.is_dir():
        raise BadInput(
            f"environment 'libero/{task}'",
            f"LIBERO's meshes and scenes are not in {assets}",
            fix=f"download its assets, and set {ASSETS_VARIABLE} to their folder",
        )
    problem = chosen.get_task(int(number))
    scene = Path(get_libero_path("bddl_files")) / problem.problem_folder / problem.bddl_file
    states = chosen.get_task_init_states(int(number))
    return lambda: make(str(scene), problem.language, states)


def make(scene: str, words: str, states: Any) -> Any:
    """One task as a `gymnasium.Env`; a seed chooses one of its recorded initial states."""
    import gymnasium
    from gymnasium import spaces
    from libero.libero.envs import OffScreenRenderEnv

    class Libero(gymnasium.Env):  # type: ignore[misc]
        """Success ends an episode."""

        action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)
        observation_space = spaces.Dict(
            {
                "instruction": spaces.Box(0, 255, (_TEXT_BYTES,), np.uint8),
                **{name: spaces.Box(0, 255, (128, 128, 3), np.uint8) for name in _IMAGES},
                **{
                    name: spaces.Box(-np.inf, np.inf, (size,), np.float64)
                    for name, size in _NUMBERS.items()
                },
            }
        )

        def __init__(self) -> None:
            self._env = OffScreenRenderEnv(
                bddl_file_name=scene, camera_heights=128, camera_widths=128
            )
            data = words.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
            self._text = np.frombuffer(data, np.uint8)
            self._length = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self._env.reset()
            self._length = 0
            number = int(self.np_random.integers(len(states)))
            return self._seen(self._env.set_init_state(states[number])), {}

        def step(self, action: Any) -> Any:
            observation, reward, over, _ = self._env.step(action)
            self._length += 1
            success = bool(self._env.check_success())
            cut = self._length >= HORIZON or (bool(over) and not success)
            return self._seen(observation), float(reward), success, cut, {"success": success}

        def close(self) -> None:
            self._env.close()

        def _seen(self, observation: Any) -> Any:
            # Its images are upside down.
            images = {name: observation[name][::-1] for name in _IMAGES}
            numbers = {name: observation[name] for name in _NUMBERS}
            return {"instruction": self._text, **images, **numbers}

    return Libero()
