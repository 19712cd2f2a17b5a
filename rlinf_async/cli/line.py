"""One line of plain text about a run, and the formats it shares with the panel."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf_async.execution.status import RunStatus

LOSSES = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction",
    "explained_variance", "grad_norm", "learning_rate",
)  # fmt: skip
"""Shown first, in this order, where a report has them."""


def status_line(status: RunStatus) -> str:
    """A run at one moment, in ASCII, without any control character."""
    parts = [f"[{duration(status.elapsed_s)}] {status.phase}"]
    if status.iteration or status.phase == "training":
        parts.append(progress(status))
    if status.env_steps:
        parts.append(f"env steps {status.env_steps:,} ({status.env_steps_per_s:,.0f}/s)")
    if status.return_mean is not None:
        parts.append(f"return {status.return_mean:.1f} ({status.episodes:,} episodes)")
    if status.iteration:
        low, mean, high = status.lag
        parts.append(f"lag {low}/{mean:.1f}/{high}")
    if status.plan and status.iteration:
        parts.append(status.plan)
    parts.extend(f"{name} {number(value)}" for name, value in chosen_losses(status.losses)[:4])
    waits = waiting(status.stages)
    if waits:
        parts.append("waits " + ", ".join(waits))
    if status.loop_lag_ms >= 50.0:
        parts.append(f"loop late {status.loop_lag_ms:.0f} ms")
    if not status.iteration and status.hosts:
        parts.append("; ".join(f"{name}: {what}" for name, what in status.hosts.items()))
    return " | ".join(parts).encode("ascii", "replace").decode()


def progress(status: RunStatus) -> str:
    """`12/250 (5 %) eta 1:02`."""
    share = status.iteration / max(status.iterations, 1)
    eta_s = remaining_s(status)
    eta = "" if eta_s is None else f" eta {duration(eta_s)}"
    return f"{status.iteration}/{status.iterations} ({share:.0%}){eta}"


def remaining_s(status: RunStatus) -> float | None:
    """Seconds to the end at the present rate; None before a rate is known."""
    if not status.iteration or status.env_steps_per_s <= 0.0:
        return None
    steps_left = (status.iterations - status.iteration) * status.env_steps / status.iteration
    return steps_left / status.env_steps_per_s


def chosen_losses(losses: Mapping[str, float]) -> list[tuple[str, float]]:
    """The report's entries, the well-known ones first."""
    first = [name for name in LOSSES if name in losses]
    return [(name, losses[name]) for name in [*first, *(n for n in losses if n not in LOSSES)]]


def waiting(stages: Mapping[str, Mapping[str, float]]) -> list[str]:
    """`train 60% input`: the largest wait of each stage that waits at least a tenth of its time."""
    found = []
    for stage, shares in stages.items():
        waits = {kind: share for kind, share in shares.items() if kind != "working"}
        kind = max(waits, key=waits.__getitem__, default="")
        if kind and waits[kind] >= 0.1:
            found.append(f"{stage} {waits[kind]:.0%} {kind}")
    return found


def duration(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def number(value: float) -> str:
    """Three or four significant digits."""
    size = abs(value)
    if size >= 1000.0:
        return f"{value:,.0f}"
    return f"{value:.3f}" if size >= 0.01 or value == 0.0 else f"{value:.1e}"
