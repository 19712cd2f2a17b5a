"""The simulations of one cell on `mujoco.batch.Batch`, and what a task keeps of them."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.listed_contacts import CONTACT_FIELDS, compile_with_listed_contacts
from rlinf_async.envs.mujoco_library import stop_clock
from rlinf_async.envs.mujoco_log import log_to_stderr_only, without_compiler_remarks
from rlinf_async.errors import BadInput

# axes: n slots of the cell
Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.intp]


class Sims:
    """The n simulations of one cell: live float64 views of their states, and registered arrays.

    What `derived`, `keep` and `vary` return is saved and restored with the cell, so a task that
    holds its memory in these alone continues bit-identically.
    """

    def __init__(
        self, batch: Any, model: Any, *, frame_skip: int, fixed: frozenset[str] = frozenset()
    ) -> None:
        import mujoco

        self.batch = batch
        """The `mujoco.batch.Batch`."""
        self.model = model
        """The `mujoco.MjModel` that all simulations begin with."""
        self.count: int = batch.nsim
        self.qpos: Floats = batch.bind("qpos")
        """[n, nq]."""
        self.qvel: Floats = batch.bind("qvel")
        """[n, nv]."""
        self.ctrl: Floats = batch.bind("ctrl")
        """[n, nu]."""
        begin = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_TIME))
        self.state: Floats = batch.state[:, begin : begin + model.nq + model.nv]
        """[n, nq + nv], the same memory as `qpos` and `qvel`."""
        self.init_qpos: Floats = model.qpos0.copy()
        """[nq], the model's reference position."""
        self.init_qvel: Floats = np.zeros(model.nv)
        """[nv]."""
        self.dt: float = model.opt.timestep * frame_skip
        """Simulated seconds of one step of the environment."""
        self.constants_follow = False
        """Whether a varied model field is one that others are computed from (`set_const`)."""
        self._fixed = fixed
        self._kept: dict[str, npt.NDArray[Any]] = {}
        self._derived: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def derived(self, field: str, *at: int) -> npt.NDArray[Any]:
        """A field of MjData [n, ...] that is no part of the state, such as `xpos` or `cvel`.

        With `at`, a part of it: `derived("xpos", 1, 0)` is the x [n] of body 1. A copy that is
        refreshed after every step and reset. As after `mj_step`, it describes the state before the
        last simulation step, unless the task is `fresh`.
        """
        name = "/".join(("derived", field, *map(str, at)))
        if name not in self._kept:
            live = self.batch.bind(field)[(slice(None), *at)]
            self._kept[name] = live.copy()
            self._derived.append((live, self._kept[name]))
        return self._kept[name]

    def keep(
        self, name: str, shape: tuple[int, ...] = (), dtype: npt.DTypeLike = np.float64
    ) -> npt.NDArray[Any]:
        """An array [n, *shape] of zeros, memory of the task's own that is saved and restored."""
        key = f"kept/{name}"
        if key in self._kept:
            raise ValueError(f"{name!r} is kept already")
        self._kept[key] = np.zeros((self.count, *shape), dtype)
        return self._kept[key]

    def vary(self, field: str) -> npt.NDArray[Any]:
        """A field of MjModel with a value for each simulation: live, [n, ...], to be written.

        Fields are named as in MjModel, those of MjOption as `opt.NAME`. What MuJoCo computes from
        a field follows after `TaskRules.randomize`.
        """
        import mujoco

        if field in self._fixed:
            raise ValueError(f"{field} cannot vary in a task with listed_contacts=True")
        values: npt.NDArray[Any] = self.batch.expand(field)
        inputs = mujoco.MjModel._setconst_inputs
        self.constants_follow |= field in inputs or field.startswith("opt.")
        return values

    def refresh(self, slots: Slots | None) -> None:
        """Copy the derived fields of `slots` (None: all) after a call on them."""
        for live, copy in self._derived:
            if slots is None:
                np.copyto(copy, live)
            else:
                copy[slots] = live[slots]

    def saved(self) -> dict[str, npt.NDArray[Any]]:
        """All that the simulations and the task need to go on, by copy."""
        arrays = {"physics": self.batch.state.copy()}
        arrays |= {name: values.copy() for name, values in self._kept.items()}
        arrays |= {f"model/{name}": values.copy() for name, values in self._varied()}
        return arrays

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `saved` gave, of a cell of the same task and size, or ValueError."""
        targets = {"physics": self.batch.state, **self._kept}
        varied = [name for name in arrays if name.startswith("model/")]
        targets |= {name: self.batch.expand(name.removeprefix("model/")) for name in varied}
        _compare(arrays, targets)
        for name, target in targets.items():
            target[...] = arrays[name]

    def _varied(self) -> list[tuple[str, npt.NDArray[Any]]]:
        from mujoco.batch import MODEL_FIELDS

        found = ((name, self.batch.expanded(name)) for name in sorted(MODEL_FIELDS))
        return [(name, values) for name, values in found if values is not None]


def _compare(
    arrays: Mapping[str, npt.NDArray[Any]], targets: Mapping[str, npt.NDArray[Any]]
) -> None:
    for name, target in targets.items():
        if name not in arrays:
            raise ValueError(f"saved state: {name!r} is missing; is it of another task?")
        if (shape := arrays[name].shape) != target.shape:
            raise ValueError(f"saved state: {name!r}: expected shape {target.shape}, got {shape}")
    if extra := set(arrays) - set(targets):
        raise ValueError(f"saved state: {sorted(extra)} are not of this task")


def open_sims(
    model_file: str,
    count: int,
    *,
    frame_skip: int,
    persistent: bool = False,
    listed_contacts: bool = False,
) -> Sims:
    """Compile a model (once per process) and make `count` simulations of it.

    They are stepped by the calling thread alone: cores are given to workers, not taken by them.
    """
    from mujoco.batch import Batch

    stop_clock()
    model = _compiled(model_file, listed_contacts)
    batch = Batch(model, count, nthread=1, persistent=persistent)
    fixed = CONTACT_FIELDS if listed_contacts else frozenset()
    return Sims(batch, model, frame_skip=frame_skip, fixed=fixed)


@functools.lru_cache(maxsize=32)
def _compiled(model_file: str, listed_contacts: bool) -> Any:
    log_to_stderr_only()
    if model_file.startswith(("/", ".", "~")):
        return _compile(Path(model_file).expanduser(), listed_contacts)
    with without_compiler_remarks():
        return _compile(_gymnasium_models() / model_file, listed_contacts)


def _compile(path: Path, listed_contacts: bool) -> Any:
    import mujoco

    if listed_contacts:
        return compile_with_listed_contacts(path)
    return mujoco.MjModel.from_xml_path(str(path))


def _gymnasium_models() -> Path:
    """Gymnasium's folder of MuJoCo models, found without importing it (0.3 s)."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise BadInput(
            "environment",
            "the task's model comes with gymnasium, which is not installed",
            fix="pip install 'rlinf_async[mujoco]'",
        )
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"
