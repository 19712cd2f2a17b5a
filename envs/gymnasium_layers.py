"""Looking through the wrappers of a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
from gymnasium import wrappers

from rlinf_async.errors import BadInput


def known(*names: str) -> tuple[type, ...]:
    """Those of Gymnasium's wrappers that the installed version has."""
    return tuple(getattr(wrappers, name) for name in names if hasattr(wrappers, name))


DRAWING = known("AddRenderObservation")
PURE_OBSERVATIONS = known(
    "AddRenderObservation",
    "DiscretizeObservation",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "GrayscaleObservation",
    "ObstructView",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
)
"""Wrappers whose observation depends on the present observation (and state) alone."""


def layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps, outermost first."""
    while True:
        yield env
        if not isinstance(env, gymnasium.Wrapper):
            return
        env = env.env


def time_limit(env: Any) -> int | None:
    """The steps of the outermost `TimeLimit`; None where there is none."""
    for layer in layers(env):
        if isinstance(layer, wrappers.TimeLimit):
            return int(layer._max_episode_steps)
    return None


def task_of(env: Any, name: str) -> str:
    """The id of the task that `env` runs: its outermost `task_id`, or else `name`."""
    for layer in layers(env):
        if (told := getattr(layer, "task_id", None)) is not None:
            return str(told)
    return name


def deferred(env: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """What to step, and what makes observations of its own: for steps that nobody looks at.

    The outermost wrappers are left out of such steps if one of them renders and all of them are
    pure; otherwise there is nothing to save: the environment itself, and None.
    """
    pure, inner = [], env
    while type(inner) in PURE_OBSERVATIONS:
        pure.append(inner)
        inner = inner.env
    if not any(isinstance(layer, DRAWING) for layer in pure):
        return env, None

    def observe(observation: Any) -> Any:
        for layer in reversed(pure):
            observation = layer.observation(observation)
        return observation

    return inner, observe


def refuse_what_is_not_one_environment(env: Any, who: str) -> None:
    """BadInput unless `env` is a `gymnasium.Env` that leaves resets to us."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise BadInput(
            who,
            "a factory must return one gymnasium.Env",
            got=f"a {type(env).__name__}",
            fix="give a factory of vector environments a parameter num_envs: the slots of a cell",
        )
    if not isinstance(env, gymnasium.Env):
        raise BadInput(
            who, "a factory must return one gymnasium.Env", got=f"a {type(env).__name__}"
        )
    if any(isinstance(layer, known("Autoreset")) for layer in layers(env)):
        raise BadInput(
            who,
            "it resets itself",
            fix="leave out gymnasium.wrappers.Autoreset: we reset",
        )
