"""What a script asks of `run.envs`, as one record that travels to the workers as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from rlinf_async.errors import BadInput

Backend = Literal["auto", "loop", "threads", "processes"]
EnvName = str | dict[str, Any]
"""An id, or what `references.describe` made of a factory or of a `BatchedTask`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRequest:
    """One environment and all that is put around it, outermost last."""

    env: EnvName
    wrappers: tuple[Any, ...] = ()
    """Described wrappers, the innermost first: see `envs.wrappers`."""
    pixels: Any = None
    """The described `Pixels` to draw, or None: see `envs.rendering`."""
    chunk: int = 1
    """Simulator steps of one action."""
    time_limit: int | None = None
    """Steps after which an episode is truncated, instead of the environment's own limit."""
    backend: Backend = "auto"
    """Where environments that are not batched are stepped."""
    checks: bool = True
    """Look for NaN, infinities and integers out of their range in every step: `envs.checks`."""

    def to_json(self) -> dict[str, Any]:
        """A dictionary that orjson can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; a bare id or a description stands for itself.

        Descriptions may have been rebuilt on the way, to factories and wrappers.
        """
        if not isinstance(data, dict) or "env" not in data:
            return cls(env=data)
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            raise BadInput("environment request", f"unknown keys {sorted(unknown)}")
        return cls(**{**data, "wrappers": tuple(data.get("wrappers", ()))})
