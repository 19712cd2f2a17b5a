"""What a task on `mujoco.batch` is: a model file and a class of rules over all simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import Observation
from rlinf_async.envs.sims import Sims, Slots
from rlinf_async.execution.spaces import ActionSpec, ArraySpec

# axes: n slots of the cell, A action


class TaskRules:
    """The rules of a task over the n simulations of a cell, as array functions; one per cell.

    A subclass sets `observation` in its constructor and writes `start`, `judge` and `observe`; the
    rest has defaults. Memory between steps belongs into `sims.keep`, fields that MuJoCo derives
    into `sims.derived`, model fields that differ between simulations into `sims.vary`: these are
    saved and restored.

    Methods get the numbers of the slots that take part, ascending, or None for all. Arrays have a
    row for every slot; rows of other slots are ignored, so simple rules may compute all of them,
    but memory of other slots must stay as it is.
    """

    reports_success: ClassVar[bool] = False
    """Whether `judge` fills `outcome.success`."""
    ends_episodes: ClassVar[bool] = True
    """Whether `judge` may end episodes; False spares each step the look at it."""

    observation: tuple[ArraySpec, ...]
    """Names, shapes and dtypes of one slot's observations. float32 stands for any float."""

    def __init__(self, sims: Sims) -> None:
        self.sims = sims

    def action_spec(self) -> ActionSpec:
        """The action of one slot; by default every actuator within its control range."""
        low, high = self.sims.model.actuator_ctrlrange.astype(np.float32).T
        return ActionSpec(
            kind="continuous",
            shape=(self.sims.model.nu,),
            dtype="float32",
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
        )

    def randomize(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Write what `sims.vary` gave, for new episodes of `slots`; called before `start`."""

    def start(self, slots: Slots, rngs: Sequence[np.random.Generator]) -> None:
        """Write the initial states of new episodes of `slots`, each from its episode's generator.

        The simulations have been reset to the model's defaults; derived fields follow.
        """
        raise NotImplementedError

    def after_start(self, slots: Slots) -> None:
        """Set memory for the new episodes of `slots`; derived fields are those of their starts."""

    def act(self, action: npt.NDArray[Any], slots: Slots | None) -> None:
        """Turn the clipped `action` [n, *A] into controls, which it is by default."""
        if slots is None:
            self.sims.ctrl[...] = action
        else:
            self.sims.ctrl[slots] = action[slots]

    def before_step(self, slots: Slots | None) -> None:
        """Remember what the reward compares with."""

    def judge(self, action: npt.NDArray[Any], outcome: Substep, slots: Slots | None) -> None:
        """Fill `outcome.reward` and, where an episode ended, `terminated` or `truncated`.

        Called once after each step, before `observe`. `outcome` is all zeros and False on entry;
        `success` is an array where `reports_success`. The time limit is added by the cell.
        """
        raise NotImplementedError

    def observe(self, out: Observation, slots: Slots | None) -> None:
        """Write observations into the rows `slots` of `out`, name to [n, *shape].

        Float arrays are float32 or float64. It may be called several times between two steps.
        """
        raise NotImplementedError

    def after_restore(self) -> None:
        """All registered arrays and the states have been replaced: forget what was cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedTask:
    """A task for `mujoco.batch`; given to `run.envs`, or listed in `envs.tasks` under its id."""

    name: str
    model_file: str
    """An XML file: a path, or a plain file name among Gymnasium's MuJoCo models."""
    frame_skip: int
    """Simulation steps in one step of the environment."""
    time_limit: int | None
    """Steps after which an episode is truncated."""
    rules: Callable[[Sims], TaskRules]
    persistent: bool = False
    """Keep one MjData per simulation: needed where `batch.get_data` is read after a step."""
    listed_contacts: bool = False
    """The model is one robot, and contact parameters of geoms do not vary: less time, the same bits
    (see `envs.listed_contacts`)."""
    fresh: bool = False
    """Bring derived fields that depend on positions and velocities up to the state after a step."""
