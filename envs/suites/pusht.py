"""gym-pusht: push a T to its place (Chi et al., 2023).

pusht/state     observation `state` [5]
pusht/pixels    observations `agent_pos` [2] and `pixels` [96, 96, 3]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async.errors import BadInput, nearest

_KINDS = {"state": "state", "pixels": "pixels_agent_pos"}


def factory(task: str, first_slot: int) -> Callable[[], Any]:
    """Environments with one kind of observation; see `suites`."""
    import gym_pusht  # noqa: F401
    import gymnasium

    if task not in _KINDS:
        raise BadInput(f"environment 'pusht/{task}'", "no such task", fix=nearest(task, _KINDS))

    class Seeded(gymnasium.Wrapper):  # type: ignore[misc]
        """Its legacy generator takes seeds of 32 bits."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            short = None if seed is None else seed % 2**32
            return self.env.reset(seed=short, options=options)

    def make() -> Any:
        inner = gymnasium.make(
            "gym_pusht/PushT-v0", obs_type=_KINDS[task], disable_env_checker=True
        )
        return Seeded(inner)

    return make
