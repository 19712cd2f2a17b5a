"""What a running job looks like at one moment: read by displays, written by the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A snapshot of a run; all values are plain numbers and strings."""

    title: str
    """Script, environment and mode, in words."""
    phase: str
    """`starting`, `training`, `closing`, or what start-up waits for."""
    elapsed_s: float
    iteration: int
    iterations: int
    env_steps: int
    env_steps_per_s: float
    """Over the last few iterations."""
    return_mean: float | None
    """Mean return of the last 20 finished training episodes; None before the first."""
    episodes: int
    lag: tuple[int, float, int]
    """Minimum, mean and maximum lag in versions over the whole run."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Last training report."""
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Fill and capacity of each stream, by name."""
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Share of each stage's wall time by kind: working, input, space, weights, devices, paused."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """What each host does now: its command and the command's age."""
    plan: str = ""
    """The arrangement of the hosts, and where it may change, whether it is being tried."""
    loop_lag_ms: float = 0.0
    """Longest time the controller's loop was late in the last seconds."""
