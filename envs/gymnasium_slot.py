"""One Gymnasium environment in its slot: reset, stepped, and named when it goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_async.envs.contract import EnvMismatch, Observation
from rlinf_async.envs.gymnasium_layers import deferred
from rlinf_async.envs.gymnasium_spaces import Leaf, Unfit, describe
from rlinf_async.hardware.activity import RESET, STEP, Line

Answer = tuple[Any, float, bool, bool, Any]
_STEP_FORM = "(observation, reward, terminated, truncated, info)"


class SlotEnv:
    """An environment and the number of its slot in the run.

    The first reset and the first step are compared with the declared space in full; later ones in
    shape and dtype.
    """

    def __init__(
        self, env: Any, leaves: Sequence[Leaf], *, name: str, slot: int, bounds: bool = True
    ) -> None:
        """`bounds`: compare the first observations with the bounds of floats too."""
        self.env, self.slot, self._bounds = env, slot, bounds
        self.has_begun = False
        self._leaves, self._name = leaves, name
        self._inner, self._finish = deferred(env)
        self._checked_step = False
        self._length = 0

    @property
    def where(self) -> str:
        """Whose it is, for messages."""
        return f"{self._name}, slot {self.slot}"

    def begin(self, seed: int, line: Line) -> Any:
        """Reset with `seed`; returns the observation, which may be the environment's own memory."""
        # Environments may sample their spaces; Gymnasium's reset does not seed these.
        self.env.action_space.seed(seed)
        self.env.observation_space.seed(seed)
        line.note(RESET, self.slot)
        try:
            answer = self.env.reset(seed=seed)
        except Exception as error:
            error.add_note(f"raised by reset of {self.where}, seed {seed}")
            raise
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self.mismatch("reset()", "(observation, info)", describe(answer))
        if not self.has_begun:
            self._check(answer[0])
            self.has_begun = True
        self._length = 0
        return answer[0]

    def step(self, action: Any, line: Line, *, seen: bool) -> Answer:
        """One step. Unless `seen`, the observation is None, except where the episode has ended."""
        quiet = self._finish is not None and not seen
        env = self._inner if quiet else self.env
        line.note(STEP, self.slot, self._length)
        try:
            answer = env.step(action)
            if not isinstance(answer, tuple) or len(answer) != 5:
                raise self.mismatch("step()", _STEP_FORM, describe(answer))
            if quiet and self._finish is not None and (answer[2] or answer[3]):
                answer = (self._finish(answer[0]), *answer[1:])
        except EnvMismatch:
            raise
        except Exception as error:
            step = self._length
            error.add_note(f"raised by {self.where}, step {step} of its episode")
            raise
        ended = bool(answer[2] or answer[3])
        if not self._checked_step:
            self._check_scalars(answer)
            if seen or ended or not quiet:
                self._check(answer[0])
                self._checked_step = True
        self._length += 1
        observation, reward, terminated, truncated, info = answer
        try:
            number = float(reward)
        except (TypeError, ValueError):
            raise self.mismatch("reward", "a number", describe(reward)) from None
        return (
            observation if seen or ended else None,
            number,
            bool(terminated),
            bool(truncated),
            info,
        )

    def store(self, observation: Any, rows: Observation, row: int) -> None:
        """Copy an observation into row `row` of arrays [n, ...]."""
        try:
            for leaf in self._leaves:
                rows[leaf.spec.name][row] = leaf.read(observation)
        except Unfit as unfit:
            raise self.mismatch(unfit.key, unfit.expected, unfit.got) from None

    def resume(self, length: int) -> None:
        """The environment is `length` steps into an episode that was restored."""
        self._length, self.has_begun = length, True

    def mismatch(self, key: str, expected: object, got: object) -> EnvMismatch:
        """What the environment returned against its declaration."""
        return EnvMismatch(self._name, slot=self.slot, key=key, expected=expected, got=got)

    def _check(self, observation: Any) -> None:
        try:
            for leaf in self._leaves:
                value = leaf.read(observation)
                if self._bounds:
                    leaf.check_limits(value)
        except Unfit as unfit:
            raise self.mismatch(unfit.key, unfit.expected, unfit.got) from None

    def _check_scalars(self, answer: tuple[Any, ...]) -> None:
        reward = np.asarray(answer[1])
        if reward.shape != () or reward.dtype.kind not in "biuf":
            raise self.mismatch("reward", "a number", describe(answer[1]))
        for key, value in (("terminated", answer[2]), ("truncated", answer[3])):
            if np.asarray(value).dtype != np.bool_ or np.ndim(value):
                raise self.mismatch(key, "a bool", describe(value))
