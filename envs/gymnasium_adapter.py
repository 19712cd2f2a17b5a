"""Any Gymnasium environment as the environments of a cell: one loop in one thread.

Imported only where such an environment is made, since it imports gymnasium.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import Autoreset, TimeLimit

from rlinf_async.envs.actions import NestedActions
from rlinf_async.envs.contract import (
    NOTHING_FINISHED,
    EnvMismatch,
    NextSeed,
    Observation,
    StepResult,
)
from rlinf_async.envs.gymnasium_actions import action_nest, action_spec
from rlinf_async.envs.gymnasium_spaces import Unfit, describe, observation_leaves
from rlinf_async.envs.mujoco_log import log_to_stderr_only
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces

_SUCCESS_KEYS = ("success", "is_success")


class GymnasiumCell:
    """`CellEnvs` of `count` environments that `factory` makes.

    Observations are copied as soon as an environment returns them, so it may reuse its memory. The
    first reset and the first step of each slot are checked against the declared spaces.
    """

    def __init__(
        self, factory: Callable[[], Any], count: int, *, name: str, first_slot: int = 0
    ) -> None:
        self.slots = count
        self._name, self._first_slot = name, first_slot
        self._envs: list[Any] = []
        try:
            for _ in range(count):
                self._envs.append(self._make(factory))
            first, who = self._envs[0], f"environment {name!r}"
            self._leaves = observation_leaves(first.observation_space, who=who)
            nest = action_nest(first.action_space, who=who)
            self.spaces = Spaces(
                observation=tuple(leaf.spec for leaf in self._leaves),
                action=action_spec(nest, who=who),
            )
        except BaseException:
            self.close()
            raise
        self.time_limit = next(_time_limits(first), None)
        self._actions = NestedActions(self.spaces.action, nest, count)
        self._checked_reset = [False] * count
        self._checked_step = [False] * count
        self._length = [0] * count

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot; returns name to [n, *shape]."""
        if len(seeds) != self.slots:
            raise ValueError(f"{self._name}: expected {self.slots} seeds, got {len(seeds)}")
        out = self._empty()
        for slot, seed in enumerate(seeds):
            self._begin(slot, seed, out)
        return out

    def step(self, actions: npt.NDArray[Any], next_seed: NextSeed) -> StepResult:
        """Step every slot once, and begin a new episode in those that finish."""
        action_of, out = self._actions.each(actions), self._empty()
        reward = np.empty(self.slots)
        terminated, truncated = np.empty(self.slots, np.bool_), np.empty(self.slots, np.bool_)
        success: npt.NDArray[np.bool_] | None = None
        for slot in range(self.slots):
            observation, reward[slot], terminated[slot], truncated[slot], info = self._step_one(
                slot, action_of(slot)
            )
            self._store(slot, observation, out)
            succeeded = _success_of(info)
            if succeeded is not None:
                success = np.zeros(self.slots, np.bool_) if success is None else success
                success[slot] = succeeded
        finished = np.flatnonzero(terminated | truncated)
        if not finished.size:
            return StepResult(out, reward, terminated, truncated, NOTHING_FINISHED, None, success)
        final = {name: values[finished] for name, values in out.items()}
        for slot in finished.tolist():
            if (seed := next_seed(slot)) is not None:
                self._begin(slot, seed, out)
        return StepResult(out, reward, terminated, truncated, finished, final, success)

    def close(self) -> None:
        """Close every environment; the first failure is raised after the last is closed."""
        failures: list[Exception] = []
        while self._envs:
            try:
                self._envs.pop().close()
            except Exception as failure:
                failures.append(failure)
        if failures and sys.exception() is None:
            raise failures[0]

    def _make(self, factory: Callable[[], Any]) -> Any:
        who = f"environment {self._name!r}"
        try:
            env = factory()
        except BadInput:
            raise
        except Exception as cause:
            error = BadInput(who, f"its constructor raised {type(cause).__name__}: {cause}")
            error.add_note("".join(traceback.format_exception(cause)))
            raise error from cause
        if "mujoco" in sys.modules:
            log_to_stderr_only()
        if not isinstance(env, gymnasium.Env):
            raise BadInput(
                who, "a factory must return one gymnasium.Env", got=f"a {type(env).__name__}"
            )
        if any(env is other for other in self._envs):
            raise BadInput(who, "the factory returned the same object twice", fix="make a new one")
        if any(isinstance(layer, Autoreset) for layer in _layers(env)):
            raise BadInput(
                who,
                "it resets itself",
                fix="leave out gymnasium.wrappers.Autoreset: we reset",
            )
        self._compare_with_first(env, who)
        return env

    def _compare_with_first(self, env: Any, who: str) -> None:
        for kind in ("observation_space", "action_space"):
            space = getattr(env, kind, None)
            if space is None:
                raise BadInput(who, f"it declares no {kind}")
            expected = getattr(self._envs[0], kind) if self._envs else space
            if space != expected:
                raise BadInput(who, f"its slots differ in {kind}", expected=expected, got=space)

    def _empty(self) -> Observation:
        return {
            spec.name: np.empty((self.slots, *spec.shape), spec.dtype)
            for spec in self.spaces.observation
        }

    def _begin(self, slot: int, seed: int, out: Observation) -> None:
        env = self._envs[slot]
        # Environments may sample their spaces; Gymnasium's reset does not seed these.
        env.action_space.seed(seed)
        env.observation_space.seed(seed)
        try:
            answer = env.reset(seed=seed)
        except Exception as error:
            error.add_note(f"raised by reset of {self._where(slot)}, seed {seed}")
            raise
        if not self._checked_reset[slot]:
            self._check(slot, "reset()", answer, "(observation, info)", 2)
            self._checked_reset[slot] = True
        self._length[slot] = 0
        self._store(slot, answer[0], out)

    def _step_one(self, slot: int, action: Any) -> tuple[Any, float, bool, bool, Any]:
        try:
            answer = self._envs[slot].step(action)
        except Exception as error:
            step = self._length[slot]
            error.add_note(f"raised by {self._where(slot)}, step {step} of its episode")
            raise
        if not self._checked_step[slot]:
            form = "(observation, reward, terminated, truncated, info)"
            self._check(slot, "step()", answer, form, 5)
            self._check_scalars(slot, answer)
            self._checked_step[slot] = True
        self._length[slot] += 1
        observation, reward, terminated, truncated, info = answer
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _store(self, slot: int, observation: Any, out: Observation) -> None:
        try:
            for leaf in self._leaves:
                out[leaf.spec.name][slot] = leaf.read(observation)
        except Unfit as unfit:
            raise self._mismatch(slot, unfit.key, unfit.expected, unfit.got) from None

    def _check(self, slot: int, call: str, answer: Any, form: str, length: int) -> None:
        if not isinstance(answer, tuple) or len(answer) != length:
            raise self._mismatch(slot, call, form, describe(answer))
        try:
            for leaf in self._leaves:
                leaf.check_limits(leaf.read(answer[0]))
        except Unfit as unfit:
            raise self._mismatch(slot, unfit.key, unfit.expected, unfit.got) from None

    def _check_scalars(self, slot: int, answer: tuple[Any, ...]) -> None:
        reward = np.asarray(answer[1])
        if reward.shape != () or reward.dtype.kind not in "biuf":
            raise self._mismatch(slot, "reward", "a number", describe(answer[1]))
        for key, value in (("terminated", answer[2]), ("truncated", answer[3])):
            if np.asarray(value).dtype != np.bool_ or np.ndim(value):
                raise self._mismatch(slot, key, "a bool", describe(value))

    def _mismatch(self, slot: int, key: str, expected: object, got: object) -> EnvMismatch:
        where = self._first_slot + slot
        return EnvMismatch(self._name, slot=where, key=key, expected=expected, got=got)

    def _where(self, slot: int) -> str:
        return f"{self._name}, slot {self._first_slot + slot}"


def _success_of(info: Any) -> bool | None:
    for key in _SUCCESS_KEYS:
        value = info.get(key) if isinstance(info, dict) else None
        if isinstance(value, bool | int | float | np.generic) or (
            isinstance(value, np.ndarray) and value.size == 1
        ):
            return bool(value)
    return None


def _layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps, outermost first."""
    while True:
        yield env
        if not isinstance(env, gymnasium.Wrapper):
            return
        env = env.env


def _time_limits(env: Any) -> Iterator[int]:
    for layer in _layers(env):
        if isinstance(layer, TimeLimit):
            yield int(layer._max_episode_steps)
