"""What every cell of Gymnasium's environments is made of, from the spaces that they declare."""

from __future__ import annotations

from typing import Any

from rlinf_async.envs.actions import NestedActions
from rlinf_async.envs.checks import ValueChecks
from rlinf_async.envs.gymnasium_actions import action_nest, action_spec
from rlinf_async.envs.gymnasium_spaces import observation_leaves
from rlinf_async.envs.slots import SlotTable
from rlinf_async.execution.spaces import Spaces


class SpaceParts:
    """Spaces, decoded actions, table of slots and checks of a cell of `count` slots.

    BadInput where a space is not supported.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        count: int,
        *,
        name: str,
        first_slot: int,
        checks: bool,
    ) -> None:
        who = f"environment {name!r}"
        self.leaves = observation_leaves(observation_space, who=who)
        nest = action_nest(action_space, who=who)
        self.spaces = Spaces(
            observation=tuple(leaf.spec for leaf in self.leaves),
            action=action_spec(nest, who=who),
        )
        self.actions = NestedActions(self.spaces.action, nest, count)
        self.table = SlotTable(self.spaces, count, who=name)
        limits = {leaf.spec.name: leaf.limits for leaf in self.leaves if leaf.limits is not None}
        self.checks = ValueChecks(name, first_slot, limits) if checks else None
        """None: values are not looked at."""
