"""HalfCheetah-v5: run forward; never terminates."""

from __future__ import annotations

from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.tasks.runner import RunnerRules


class HalfCheetahRules(RunnerRules):
    """The observation is the state without the root's x."""

    velocities = "normal"
    control_weight = 0.1


TASK = BatchedTask(
    name="HalfCheetah-v5",
    model_file="half_cheetah.xml",
    frame_skip=5,
    time_limit=1000,
    rules=HalfCheetahRules,
    listed_contacts=True,
)
