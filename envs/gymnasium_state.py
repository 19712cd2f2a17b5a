"""Saving and restoring one Gymnasium environment, wrappers and generator included.

What can be restored: Gymnasium's own MuJoCo environments, and environments whose class has
`get_state()`, which returns an array or a flat dictionary of arrays, and `set_state(state)`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import wrappers

from rlinf_async.envs.contract import EnvCannotRestore
from rlinf_async.envs.gymnasium_layers import PURE_OBSERVATIONS, known, layers

Arrays = dict[str, npt.NDArray[Any]]

_WITHOUT_STATE = PURE_OBSERVATIONS + known(
    "ClipAction",
    "ClipReward",
    "DiscretizeAction",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "RescaleAction",
    "TransformAction",
    "TransformObservation",
    "TransformReward",
)
_DERIVED = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat"),
    *("site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
    *("subtree_com", "subtree_linvel", "subtree_angmom", "cinert", "cvel", "cacc", "cfrc_int"),
    *("cfrc_ext", "qacc", "qfrc_actuator", "qfrc_passive", "qfrc_bias", "qfrc_constraint"),
    *("actuator_force", "actuator_length", "actuator_velocity", "sensordata", "ten_length"),
    *("ten_velocity", "energy"),
)
"""Fields of MjData that rewards and observations read before the next step computes them anew."""
_GENERATOR_BYTES = 256


class EnvState:
    """Saves and restores one environment; EnvCannotRestore at once where that cannot be done."""

    def __init__(self, env: Any, *, name: str) -> None:
        self._env, self._base, self._name = env, env.unwrapped, name
        self._limits: list[Any] = []
        self._own: list[Any] = []
        for layer in layers(env):
            if isinstance(layer, wrappers.TimeLimit):
                self._limits.append(layer)
            elif layer is self._base or _has_own_state(layer):
                self._own.append(layer)
            elif type(layer) not in _WITHOUT_STATE:
                raise self._impossible(
                    f"its wrapper {type(layer).__name__} has no get_state() and set_state(state)"
                )
        self._mujoco = not _has_own_state(self._base)
        if self._mujoco and not _is_gymnasiums_mujoco(self._base):
            raise self._impossible(
                f"{type(self._base).__name__} has no get_state() and set_state(state), and is no "
                "MuJoCo environment of Gymnasium's own"
            )

    def save(self) -> Arrays:
        """Name to array, by copy."""
        elapsed = [int(layer._elapsed_steps or 0) for layer in self._limits]
        saved: Arrays = {"elapsed": np.array(elapsed, np.int64), "generator": self._generator()}
        for number, layer in enumerate(self._own):
            if self._mujoco and layer is self._base:
                saved["mujoco"] = _mujoco_state(layer)
            else:
                saved |= self._named(f"own{number}", layer.get_state())
        return saved

    def restore(self, saved: Arrays) -> None:
        """Put the environment into the state that `save` returned."""
        for layer, elapsed in zip(self._limits, saved["elapsed"].tolist(), strict=True):
            layer._elapsed_steps = elapsed
        self._base.np_random.bit_generator.state = json.loads(bytes(saved["generator"]))
        for number, layer in enumerate(self._own):
            if self._mujoco and layer is self._base:
                _set_mujoco_state(layer, saved["mujoco"])
                continue
            prefix = f"own{number}"
            inside = {
                k[len(prefix) + 1 :]: v.copy()
                for k, v in saved.items()
                if k[: len(prefix)] == prefix
            }
            layer.set_state(inside[""] if set(inside) == {""} else inside)

    def _named(self, prefix: str, state: Any) -> Arrays:
        values = state if isinstance(state, dict) else {"": state}
        arrays = {f"{prefix}/{key}": np.array(value) for key, value in values.items()}
        for value in arrays.values():
            if value.dtype.kind not in "biuf":
                raise self._impossible(
                    "its get_state() returns something else than an array or a flat dictionary of "
                    "arrays of numbers"
                )
        return arrays

    def _generator(self) -> npt.NDArray[np.uint8]:
        words = json.dumps(self._base.np_random.bit_generator.state).encode()
        return np.frombuffer(words.ljust(_GENERATOR_BYTES), np.uint8).copy()

    def _impossible(self, why: str) -> EnvCannotRestore:
        return EnvCannotRestore(f"{self._name} cannot save and restore its state: {why}")


def _has_own_state(layer: Any) -> bool:
    kind = type(layer)
    if not callable(getattr(kind, "get_state", None)):
        return False
    # Gymnasium's MujocoEnv has a set_state(qpos, qvel), which is another thing.
    return callable(getattr(kind, "set_state", None)) and not _inherits_mujocos(kind)


def _inherits_mujocos(kind: type) -> bool:
    module = sys.modules.get("gymnasium.envs.mujoco.mujoco_env")
    return module is not None and getattr(kind, "set_state", None) is module.MujocoEnv.set_state


def _is_gymnasiums_mujoco(base: Any) -> bool:
    module = sys.modules.get("gymnasium.envs.mujoco.mujoco_env")
    is_mujoco = module is not None and isinstance(base, module.MujocoEnv)
    return is_mujoco and type(base).__module__.startswith("gymnasium.envs.mujoco.")


def _mujoco_state(base: Any) -> npt.NDArray[np.float64]:
    """The integration state and the derived fields, one behind the other."""
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = np.empty(mujoco.mj_stateSize(base.model, kind))
    mujoco.mj_getState(base.model, base.data, physics, kind)
    return np.concatenate([physics, *(field.ravel() for field in _derived(base.data))])


def _set_mujoco_state(base: Any, state: npt.NDArray[np.float64]) -> None:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    begin = mujoco.mj_stateSize(base.model, kind)
    mujoco.mj_setState(base.model, base.data, state[:begin], kind)
    for field in _derived(base.data):
        field[...] = state[begin : begin + field.size].reshape(field.shape)
        begin += field.size


def _derived(data: Any) -> list[npt.NDArray[np.float64]]:
    return [getattr(data, name) for name in _DERIVED if hasattr(data, name)]


def stacked(states: list[Arrays]) -> Arrays:
    """One array [n, ...] of each name; of names whose shapes differ, one array `name#slot` each."""
    together: Arrays = {}
    for name in dict.fromkeys(name for state in states for name in state):
        values = [state.get(name) for state in states]
        there = [each for each in values if each is not None]
        if len(there) == len(states) and len({(v.shape, v.dtype) for v in there}) == 1:
            together[name] = np.stack(there)
        else:
            pairs = enumerate(values)
            together |= {f"{name}#{slot}": each for slot, each in pairs if each is not None}
    return together


def unstacked(together: Arrays, count: int) -> list[Arrays]:
    """The inverse of `stacked`."""
    states: list[Arrays] = [{} for _ in range(count)]
    for name, values in together.items():
        whole, mark, slot = name.rpartition("#")
        if mark:
            states[int(slot)][whole] = values
        else:
            for number, value in enumerate(values):
                states[number][name] = value
    return states
