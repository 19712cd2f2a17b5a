"""Any wrapper of Gymnasium by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.errors import BadInput, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumWrapper:
    """A wrapper of `gymnasium.wrappers`, around each environment by itself.

    It sees one environment, so a task that would be stepped in batch is stepped through Gymnasium
    then; where `rlinf_async.envs.wrappers` has the same thing for whole cells, that is faster.
    Such wrappers stand inside those of ours, in the order given.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class."""

    def applied(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """A factory of wrapped environments; BadInput with the nearest name."""
        from gymnasium import wrappers

        known = [name for name in dir(wrappers) if isinstance(getattr(wrappers, name), type)]
        if self.name not in known:
            raise BadInput(
                "GymnasiumWrapper", f"no wrapper {self.name!r}", fix=nearest(self.name, known)
            )
        wrapper = getattr(wrappers, self.name)

        def make() -> Any:
            return wrapper(factory(), **self.arguments)

        return make
