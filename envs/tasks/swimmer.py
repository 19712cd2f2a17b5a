"""Swimmer-v5: swim forward; never terminates."""

from __future__ import annotations

from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.tasks.runner import RunnerRules


class SwimmerRules(RunnerRules):
    """The observation is the state without the root's x and y."""

    unseen = 2
    control_weight = 1e-4


TASK = BatchedTask(
    name="Swimmer-v5",
    model_file="swimmer.xml",
    frame_skip=4,
    time_limit=1000,
    rules=SwimmerRules,
    listed_contacts=True,
)
