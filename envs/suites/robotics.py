"""gymnasium-robotics: Fetch, hands, Adroit, kitchen and mazes, under their own ids.

robotics/FetchPickAndPlace-v4    observations `observation`, `achieved_goal`, `desired_goal`
robotics/AdroitHandDoor-v1, robotics/FrankaKitchen-v1, robotics/PointMaze_UMaze-v3, ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async.errors import BadInput, nearest


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments of one id; see `suites`."""
    import gymnasium
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    known = [
        name
        for name, spec in gymnasium.registry.items()
        if "gymnasium_robotics" in str(spec.entry_point)
    ]
    if task not in known:
        raise BadInput(f"environment 'robotics/{task}'", "no such task", fix=nearest(task, known))
    return lambda: gymnasium.make(task, disable_env_checker=True)
