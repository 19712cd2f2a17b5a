"""What a policy remembers of an episode."""

from __future__ import annotations

from typing import Any


def state_shape(policy: Any) -> dict[str, tuple[int, ...]]:
    """Name to shape of one slot's memory; empty for a policy, record or module, without one."""
    return dict(getattr(policy, "state_shape", {}))
