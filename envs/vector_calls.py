"""Calls of a Gymnasium vector environment, their answers read and compared with its spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import SyncVectorEnv

from rlinf_async.envs.contract import EnvMismatch, Observation
from rlinf_async.envs.gymnasium_spaces import Leaf, Unfit, describe
from rlinf_async.hardware.activity import RESET, STEP, working

# axes: n slots of the cell
Slots = npt.NDArray[np.intp]
_SUCCESS_KEYS = ("success", "is_success")


@dataclass(slots=True)
class VectorAnswer:
    """One step of all slots, in arrays of our own."""

    rows: Observation
    """Name to [n, *shape]."""
    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    infos: Any


class VectorCalls:
    """Resets and steps a vector environment; EnvMismatch names slot and key of what does not fit.

    The first two answers are compared with the bounds of the spaces too.
    """

    def __init__(
        self,
        env: Any,
        leaves: Sequence[Leaf],
        *,
        name: str,
        first_slot: int,
        bounds: bool = True,
    ) -> None:
        self._env, self._leaves, self._name = env, leaves, name
        self._slots, self._first_slot = int(env.num_envs), first_slot
        self._unchecked = 2 if bounds else 0

    def reset(
        self, seeds: list[int | None], mask: npt.NDArray[np.bool_] | None = None
    ) -> Observation:
        """Reset the slots of `mask` (None: all); the observations [n, ...] of all."""
        options = {} if mask is None else {"options": {"reset_mask": mask.copy()}}
        self._seed_spaces(seeds)
        with working() as line:
            line.note(RESET, self._first_slot, 0, self._slots)
            try:
                answer = self._env.reset(seed=seeds, **options)
            except Exception as error:
                error.add_note(f"raised by reset of {self._where()}, seeds {seeds}")
                raise
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._mismatch(0, "reset()", "(observations, infos)", describe(answer))
        return self._read(answer[0])

    def step(self, actions: Any, lengths: npt.NDArray[np.int64]) -> VectorAnswer:
        """Step all slots, whose episodes have `lengths` [n] so far."""
        with working() as line:
            line.note(STEP, self._first_slot, int(lengths.max()), self._slots)
            try:
                answer = self._env.step(actions)
            except Exception as error:
                error.add_note(f"raised by step of {self._where()}, at steps {lengths.tolist()}")
                raise
        if not isinstance(answer, tuple) or len(answer) != 5:
            form = "(observations, rewards, terminations, truncations, infos)"
            raise self._mismatch(0, "step()", form, describe(answer))
        return VectorAnswer(
            rows=self._read(answer[0]),
            reward=self._column("reward", answer[1], np.float64),
            terminated=self._column("terminated", answer[2], np.bool_),
            truncated=self._column("truncated", answer[3], np.bool_),
            infos=answer[4],
        )

    def put_last_observations(self, answer: VectorAnswer, slots: Slots) -> None:
        """Replace first observations of new episodes by the last ones of those that ended."""
        infos = answer.infos
        finals = infos.get("final_obs") if isinstance(infos, dict) else None
        for slot in slots.tolist():
            if finals is None or finals[slot] is None:
                got = describe(infos)
                raise self._mismatch(slot, "infos['final_obs']", "the last observation", got)
            try:
                for leaf in self._leaves:
                    answer.rows[leaf.spec.name][slot] = leaf.read(finals[slot])
            except Unfit as unfit:
                raise self._mismatch(slot, unfit.key, unfit.expected, unfit.got) from None

    def _seed_spaces(self, seeds: list[int | None]) -> None:
        """Environments may sample their spaces; Gymnasium's reset does not seed these."""
        base = self._env.unwrapped
        if not isinstance(base, SyncVectorEnv):
            return
        for env, seed in zip(base.envs, seeds, strict=True):
            if seed is not None:
                env.action_space.seed(seed)
                env.observation_space.seed(seed)

    def _read(self, observation: Any) -> Observation:
        rows: Observation = {}
        slot = 0
        try:
            for leaf in self._leaves:
                shape = (self._slots, *leaf.spec.shape)
                values = rows[leaf.spec.name] = np.empty(shape, leaf.spec.dtype)
                leaf.read_all(observation, values)
                for slot in range(self._slots if self._unchecked else 0):
                    leaf.check_limits(values[slot])
        except Unfit as unfit:
            raise self._mismatch(slot, unfit.key, unfit.expected, unfit.got) from None
        self._unchecked = max(0, self._unchecked - 1)
        return rows

    def _column(self, key: str, value: Any, kind: type[np.generic]) -> npt.NDArray[Any]:
        column = np.asarray(value)
        if column.shape != (self._slots,) or not np.can_cast(column.dtype, kind, "same_kind"):
            expected = f"{np.dtype(kind)} of shape ({self._slots},)"
            raise self._mismatch(0, key, expected, describe(column))
        return column.astype(kind)

    def _mismatch(self, slot: int, key: str, expected: object, got: object) -> EnvMismatch:
        return EnvMismatch(
            self._name, slot=self._first_slot + slot, key=key, expected=expected, got=got
        )

    def _where(self) -> str:
        return f"{self._name}, slots {self._first_slot} to {self._first_slot + self._slots - 1}"


def success_in(answer: VectorAnswer) -> npt.NDArray[np.bool_] | None:
    """What infos say of success, [n]; of slots that reset themselves, their last info does."""
    infos, ended = answer.infos, answer.terminated | answer.truncated
    if not isinstance(infos, dict):
        return None
    found = _told(infos, np.ones_like(ended), None)
    return _told(infos.get("final_info"), ended, found)


def _told(
    infos: Any, relevant: npt.NDArray[np.bool_], found: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_] | None:
    key = next((k for k in _SUCCESS_KEYS if isinstance(infos, dict) and k in infos), None)
    if key is None:
        return found
    given = np.asarray(infos[key])
    if given.shape != relevant.shape or given.dtype.kind not in "biufO":
        return found
    told = relevant & np.asarray(infos.get(f"_{key}", relevant), np.bool_)
    found = np.zeros(len(told), np.bool_) if found is None else found
    found[told] = given[told].astype(np.bool_)
    return found
