"""Meta-World v3: 50 tabletop tasks of a Sawyer arm (Yu et al., 2020), one by one or as MT10, MT50.

    metaworld/push-v3     observation `state` [39], the goal included
    metaworld/MT10        also `task` (which one) and `instruction` (bytes); slots take turns

An episode lasts 500 steps whatever happens; success is in its record. Each seed draws its own
initial state and goal.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_async.envs.cache import cache_folder
from rlinf_async.errors import BadInput, nearest

SETS = ("MT10", "MT50")
_TEXT_BYTES = 64

_UNUSUAL = {
    "assembly": "put the nut onto the peg",
    "basketball": "dunk the ball into the basket",
    "bin-picking": "move the puck from one bin to the other",
    "box-close": "put the lid onto the box",
    "button-press-topdown": "press the button from above",
    "button-press-topdown-wall": "press the button behind the wall from above",
    "button-press-wall": "press the button behind the wall",
    "coffee-button": "press the button of the coffee machine",
    "coffee-pull": "pull the mug away from the coffee machine",
    "coffee-push": "push the mug under the coffee machine",
    "dial-turn": "turn the dial",
    "disassemble": "take the nut off the peg",
    "faucet-close": "turn the faucet off",
    "faucet-open": "turn the faucet on",
    "handle-press": "press the handle down",
    "handle-press-side": "press the handle down from the side",
    "handle-pull": "pull the handle up",
    "handle-pull-side": "pull the handle up from the side",
    "hammer": "hammer the nail into the wall",
    "hand-insert": "put the hand into the hole",
    "lever-pull": "pull the lever up",
    "peg-insert-side": "insert the peg from the side",
    "peg-unplug-side": "pull the plug out from the side",
    "pick-out-of-hole": "pick the puck out of the hole",
    "pick-place": "pick up the puck and place it at the goal",
    "pick-place-wall": "pick up the puck and place it behind the wall",
    "plate-slide": "slide the plate into the goal",
    "plate-slide-back": "slide the plate out of the goal",
    "plate-slide-back-side": "slide the plate out of the goal from the side",
    "plate-slide-side": "slide the plate into the goal from the side",
    "push": "push the puck to the goal",
    "push-back": "pull the puck back to the goal",
    "push-wall": "push the puck around the wall to the goal",
    "reach": "reach the goal",
    "reach-wall": "reach the goal behind the wall",
    "shelf-place": "place the cube onto the shelf",
    "soccer": "kick the ball into the goal",
    "stick-pull": "pull the box with the stick",
    "stick-push": "push the box with the stick",
    "sweep": "sweep the cube off the table",
    "sweep-into": "sweep the cube into the hole",
}


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments of one task, or of a set's tasks in turn; see `suites`."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    if task in SETS:
        names = tasks_of(task)
        numbers = iter(range(first_slot, 1 << 62))

        def next_of_set() -> Any:
            number = next(numbers) % len(names)
            return _with_task(make(names[number]), names, number)

        return next_of_set
    if task not in ALL_V3_ENVIRONMENTS:
        known = [*SETS, *ALL_V3_ENVIRONMENTS]
        raise BadInput(f"environment 'metaworld/{task}'", "no such task", fix=nearest(task, known))
    return lambda: make(task)


def tasks_of(name: str) -> tuple[str, ...]:
    """The tasks of "MT10" or "MT50", in Meta-World's order."""
    from metaworld import env_dict

    return tuple(getattr(env_dict, f"{name}_V3"))


def instruction_of(task: str) -> str:
    """What to do, in words."""
    plain = task.removesuffix("-v3")
    if plain in _UNUSUAL:
        return _UNUSUAL[plain]
    thing, _, verb = plain.rpartition("-")
    return f"{verb} the {thing.replace('-', ' ')}"


def expert(task: str) -> Callable[[Any], Any]:
    """The scripted expert of a task: `state` [39] to an action [4] within [-1, 1]."""
    from metaworld.policies import ENV_POLICY_MAP

    policy = ENV_POLICY_MAP[task]()

    def act(state: Any) -> Any:
        action = policy.get_action(np.asarray(state, np.float64))
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    return act


def make(task: str) -> Any:
    """One environment of `task`, a `gymnasium.Env`, whose episodes follow from their seeds."""
    import gymnasium
    import mujoco
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    base: Any = ALL_V3_ENVIRONMENTS[task]

    class Seeded(base):  # type: ignore[misc]
        """The task with the goal in sight, and drawn anew at every reset."""

        def __init__(self) -> None:
            super().__init__()
            self._partially_observable = False
            # Observations are clipped to this space, which was made while the goal was hidden.
            self.__dict__.pop("sawyer_observation_space", None)
            self._freeze_rand_vec, self._set_task_called = False, True
            self.seeded_rand_vec = True
            unbounded = gymnasium.spaces.Box(-np.inf, np.inf, (39,), np.float64)
            self.observation_space = unbounded

        def _initialize_simulation(self) -> Any:
            model = compiled(Path(self.fullpath))
            model.vis.global_.offwidth, model.vis.global_.offheight = self.width, self.height
            return model, mujoco.MjData(model)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                # Its generator goes with the seed; goals are drawn from it.
                self.np_random = np.random.Generator(np.random.PCG64(seed))
            return super().reset()

    return Seeded()


def compiled(xml: Path) -> Any:
    """The model of an XML file, from a cache on disk: compiling its meshes takes half a second."""
    import mujoco

    told = f"{xml}:{xml.stat().st_mtime_ns}:{mujoco.__version__}"
    path = cache_folder() / "models" / f"{hashlib.sha256(told.encode()).hexdigest()[:24]}.mjb"
    if not path.exists():
        model = mujoco.MjModel.from_xml_path(str(xml))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        mujoco.mj_saveModel(model, str(draft), None)
        draft.replace(path)
    return mujoco.MjModel.from_binary_path(str(path))


def _with_task(env: Any, names: tuple[str, ...], number: int) -> Any:
    """`env` with `task` and `instruction` beside its state."""
    import gymnasium
    from gymnasium import spaces

    class Told(gymnasium.ObservationWrapper):  # type: ignore[misc]
        """Names its task in every observation."""

        def __init__(self) -> None:
            super().__init__(env)
            self.task_id = names[number]
            self.observation_space = spaces.Dict(
                {
                    "instruction": spaces.Box(0, 255, (_TEXT_BYTES,), np.uint8),
                    "state": env.observation_space,
                    "task": spaces.Discrete(len(names)),
                }
            )
            words = instruction_of(names[number]).encode()
            self._text = np.frombuffer(words.ljust(_TEXT_BYTES, b"\0"), np.uint8)

        def observation(self, observation: Any) -> Any:
            return {"instruction": self._text, "state": observation, "task": number}

    return Told()
