"""Which class plays which role. The task layer registers dotted names; nothing is imported here."""

from __future__ import annotations

from rlinf_async.errors import BadInput, nearest

_ROLES: dict[str, str] = {}


def register_role(role: str, reference: str) -> None:
    """Let `role` (`render`, `rollout`, `train`, ...) be played by the class `module:qualname`."""
    _ROLES[role] = reference


def role_reference(role: str) -> str:
    """`module:qualname` of the class that plays `role`."""
    if role not in _ROLES:
        raise BadInput("roles", f"no worker plays the role {role!r}", fix=nearest(role, _ROLES))
    return _ROLES[role]
