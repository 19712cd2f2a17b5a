"""Tasks stepped by `mujoco.batch.Batch`: all simulations of a cell in one call, the rest in numpy.

A task is a `BatchedTask` record: a model file, a frame skip, a time limit, and the class that holds
its rules as a few array functions over all slots (`TaskRules`).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.actions import ActionDecoder
from rlinf_async.envs.contract import NOTHING_FINISHED, NextSeed, Observation, StepResult
from rlinf_async.envs.mujoco_log import log_to_stderr_only, without_compiler_remarks
from rlinf_async.envs.seeding import episode_generator
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces

# axes: n slots of the cell, D observation, A action
Floats = npt.NDArray[np.float64]
_NEVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Sims:
    """The simulations of one cell: live views that rules read, float64."""

    batch: Any
    """The `mujoco.batch.Batch`, for derived fields (`batch.bind`) and named parts."""
    model: Any
    """The `mujoco.MjModel` of all simulations."""
    count: int
    qpos: Floats
    """[n, nq]."""
    qvel: Floats
    """[n, nv]."""
    state: Floats
    """[n, nq + nv], the same memory as `qpos` and `qvel`."""
    init_qpos: Floats
    """[nq], the model's reference position."""
    init_qvel: Floats
    """[nv], zeros."""
    dt: float
    """Simulated seconds of one step of the environment."""


class TaskRules(Protocol):
    """The rules of a task over the n simulations of a cell; made once per cell from its `Sims`."""

    observation_size: int

    def before_step(self) -> None:
        """Remember what the reward compares with."""
        ...

    def judge(
        self,
        action: npt.NDArray[np.float32],
        reward: Floats,
        terminated: npt.NDArray[np.bool_],
    ) -> None:
        """Fill `reward` [n] and, where an episode ended, `terminated` [n] (false on entry).

        Called once after each step, before `observe`. `action` [n, A] is the clipped one.
        """
        ...

    def observe(self, out: npt.NDArray[Any]) -> None:
        """Write the observations of all slots into `out` [n, D], float32 or float64."""
        ...

    def draw(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """The initial qpos [nq] and qvel [nv] of one episode."""
        ...

    def after_reset(self, slots: npt.NDArray[np.intp]) -> None:
        """Forget what belongs to the ended episodes of `slots`, which have new states."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedTask:
    """A task for `mujoco.batch`, as Gymnasium's class of the same name defines it."""

    name: str
    model_file: str
    """An XML file: a path, or a plain file name among Gymnasium's MuJoCo models."""
    frame_skip: int
    """Simulation steps in one step of the environment."""
    time_limit: int | None
    """Steps after which an episode is truncated."""
    rules: Callable[[Sims], TaskRules]
    persistent: bool = False
    """Keep one MjData per simulation: needed to read what `bind` does not offer after a step."""


class BatchedCell:
    """`CellEnvs` of a `BatchedTask`.

    `dtype` is that of the observations: float32 as in segments, or float64 to compare bits.
    """

    def __init__(self, task: BatchedTask, count: int, *, dtype: str = "float32") -> None:
        self.slots = count
        self._name, self._frame_skip = task.name, task.frame_skip
        self._sims = open_sims(task, count)
        self._batch, self._ctrl = self._sims.batch, self._sims.batch.bind("ctrl")
        self._unstaged = _no_stage()
        self._rules = task.rules(self._sims)
        self._shape = (count, self._rules.observation_size)
        self._dtype = np.dtype(dtype)
        self.spaces = _spaces(self._sims.model, self._rules.observation_size, dtype)
        self._decode = ActionDecoder(self.spaces.action, count)
        # Ends of episodes on a clock of the cell: one comparison a step tells that none is due.
        self.time_limit = task.time_limit
        self._limit = _NEVER // 2 if task.time_limit is None else task.time_limit
        self._clock = 0
        self._due = np.full(count, _NEVER, np.int64)
        self._next_due = _NEVER

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Begin a new episode in every slot; returns {"state": [n, D]}."""
        if len(seeds) != self.slots:
            raise ValueError(f"{self._name}: expected {self.slots} seeds, got {len(seeds)}")
        self._begin(np.arange(self.slots), seeds)
        return {"state": self._observe(np.empty(self._shape, self._dtype))}

    def step(self, actions: npt.NDArray[Any], next_seed: NextSeed) -> StepResult:
        """Step every slot once, and begin a new episode in those that finish."""
        rules, count = self._rules, self.slots
        action = self._decode(actions)
        self._ctrl[...] = action
        rules.before_step()
        self._batch.step(nstep=self._frame_skip)
        self._clock += 1
        reward, terminated = np.empty(count), np.zeros(count, np.bool_)
        rules.judge(action, reward, terminated)
        state = self._observe(np.empty(self._shape, self._dtype))
        due = self._clock >= self._next_due
        truncated = self._due <= self._clock if due else np.zeros(count, np.bool_)
        if not due and not np.count_nonzero(terminated):
            return StepResult(
                {"state": state}, reward, terminated, truncated, NOTHING_FINISHED, None
            )
        finished = np.flatnonzero(terminated | truncated)
        final = state[finished]
        seeds = {slot: next_seed(slot) for slot in finished.tolist()}
        going_on = {slot: seed for slot, seed in seeds.items() if seed is not None}
        self._begin(np.fromiter(going_on, np.intp), list(going_on.values()))
        self._observe(state)
        return StepResult(
            {"state": state}, reward, terminated, truncated, finished, {"state": final}
        )

    def close(self) -> None:
        """Nothing to free before the cell itself is."""

    def _observe(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self._rules.observe(out)
        return out

    def _begin(self, slots: npt.NDArray[np.intp], seeds: Sequence[int]) -> None:
        """Give `slots` new episodes; the same operations, in the same order, as Gymnasium's."""
        sims, ids = self._sims, slots.astype(np.int32)
        self._batch.reset(ids, stage=self._unstaged)
        for slot, seed in zip(slots.tolist(), seeds, strict=True):
            sims.qpos[slot], sims.qvel[slot] = self._rules.draw(episode_generator(seed))
        # Besides the derived fields, this computes the warm start of the first step's solver.
        self._batch.forward(ids)
        self._rules.after_reset(slots)
        self._due[slots] = self._clock + self._limit
        self._next_due = int(self._due.min())


def open_sims(task: BatchedTask, count: int) -> Sims:
    """Compile the task's model (once per process) and make its simulations.

    They are stepped by the calling thread alone: cores are given to workers, not taken by them.
    """
    import mujoco
    from mujoco.batch import Batch

    model = _compiled(task.model_file)
    batch = Batch(model, count, nthread=1, persistent=task.persistent)
    qpos, qvel = batch.bind("qpos"), batch.bind("qvel")
    begin = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_TIME))
    return Sims(
        batch=batch,
        model=model,
        count=count,
        qpos=qpos,
        qvel=qvel,
        state=batch.state[:, begin : begin + model.nq + model.nv],
        init_qpos=model.qpos0.copy(),
        init_qvel=np.zeros(model.nv),
        dt=model.opt.timestep * task.frame_skip,
    )


def _no_stage() -> int:
    import mujoco

    return int(mujoco.mjtStage.mjSTAGE_NONE)


@functools.lru_cache(maxsize=32)
def _compiled(model_file: str) -> Any:
    import mujoco

    log_to_stderr_only()
    if model_file.startswith(("/", ".", "~")):
        return mujoco.MjModel.from_xml_path(str(Path(model_file).expanduser()))
    with without_compiler_remarks():
        return mujoco.MjModel.from_xml_path(str(_gymnasium_models() / model_file))


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


def _spaces(model: Any, observation_size: int, dtype: str) -> Spaces:
    low, high = model.actuator_ctrlrange.astype(np.float32).T
    return Spaces(
        observation=(ArraySpec(name="state", shape=(observation_size,), dtype=dtype),),
        action=ActionSpec(
            kind="continuous",
            shape=(model.nu,),
            dtype="float32",
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
        ),
    )
