"""The options of the engine: what every script can be started with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlinf_async.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where and how the work runs; none of these changes what the script means."""

    mode: Literal["auto", "serial", "collocated", "disaggregated", "hybrid"] = "auto"
    """auto: measures the others while the run goes on, and changes to the fastest. serial:
    everything in this process. collocated: phases alternate on all cores. disaggregated: each phase
    has its own cores and they overlap. hybrid: they overlap, and collecting has all cores that
    training leaves free."""
    devices: str = ""
    """Cores to use, such as 0-3,6. Empty: all that this process may use."""
    placement: str = ""
    """Instead of mode, hosts, policy and depth: which phases share processes, on which cores, such
    as 'render+rollout=0-2; train=3'. See `rlinf_async.scheduling.grammar`."""
    hosts: int | None = None
    """Worker processes that step environments. None: chosen from the cores."""
    policy: Literal["beside", "central"] | None = None
    """beside: the policy acts in the process of its environments. central: in one for all. None:
    beside, or central where the environments live in an interpreter of their own."""
    depth: int | None = None
    """Cells of one render host that are under way at once, with a central policy. None: all."""
    seed: int = 0
    """Seed of the run: environments, action noise, initial weights, minibatches."""
    lag: Literal["exact", "free"] = "exact"
    """exact: batch n acts with version max(0, n - max_lag) and the numbers are reproducible.
    free: actors take each new version at once."""
    cell: int = 16
    """Environments in one cell, the unit of a policy call; part of what a seed reproduces."""
    deterministic: bool = True
    """False: a central policy acts for all cells that are ready in one call, which is faster for
    large policies and many cells; the last bits then depend on timing."""
    merge_slots: int | None = None
    """Environments of one such call at most. None: all that are ready."""
    merge_wait_ms: float = 0.0
    """So long the first cell that is ready waits for others to share its call."""
    start_timeout_s: float = 300.0
    """A worker that is not built in this time, its environments' first reset included, is taken for
    stuck."""
    reply_timeout_s: float = 600.0
    """A worker that does not answer a call for so long, or for 20 times the slowest call so far, is
    taken for stuck."""
    env_timeout_s: float = 60.0
    """One step or reset of an environment that takes so long, and 20 times the slowest one so far,
    is taken for stuck; before any was measured, start_timeout_s counts."""
    run_dir: Path | None = None
    """Folder of this run, new or empty. None: runs/SCRIPT-DATE-TIME."""
    init_from: Path | None = None
    """Checkpoint folder whose weights and statistics the run begins with."""
    poison: bool = False
    """Debug: fill freed rows with garbage, so that a use after release shows."""
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """Progress display. auto: rich on a terminal, else plain lines."""
    curve: bool = True
    """Draw the learning curve into the run's folder when the run has ended."""

    def __post_init__(self) -> None:
        for name, least in (
            ("hosts", 1),
            ("cell", 1),
            ("depth", 1),
            ("seed", 0),
            ("merge_slots", 1),
            ("merge_wait_ms", 0.0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                option = f"--{name.replace('_', '-')}"
                raise BadInput(option, "too small", expected=f"at least {least}", got=value)
        for name in ("hosts", "depth"):
            if self.placement and getattr(self, name) is not None:
                raise BadInput(f"--{name}", "--placement says that", fix=f"leave --{name} out")
        if self.deterministic and (self.merge_slots or self.merge_wait_ms):
            raise BadInput(
                "--merge-slots" if self.merge_slots else "--merge-wait-ms",
                "policy calls are merged only where the last bits may depend on timing",
                fix="add --no-deterministic, or leave it out",
            )
        for name in ("start_timeout_s", "reply_timeout_s", "env_timeout_s"):
            limit_s = getattr(self, name)
            if not 0.0 < limit_s < math.inf:
                option = f"--{name.replace('_', '-')}"
                raise BadInput(option, "no time", expected="> 0", got=limit_s)


RESERVED: frozenset[str] = frozenset(field.name for field in dataclasses.fields(EngineOptions))
"""Names that a script's Config may not use for its own fields."""


def parse_cores(text: str, available: Collection[int]) -> tuple[int, ...]:
    """Core numbers of a list such as `0-3,6`, in ascending order; all of `available` if empty.

    Raises BadInput for what is no list, names a core twice, or names a core that this process may
    not use.
    """
    usable = tuple(sorted(available))
    if not text.strip():
        return usable
    cores: list[int] = []
    for part in text.split(","):
        cores.extend(_core_range(part, text))
    twice = sorted({core for core in cores if cores.count(core) > 1})
    if twice:
        raise BadInput("--devices", f"core {twice[0]} is named twice", got=repr(text))
    missing = [core for core in cores if core not in usable]
    if missing:
        raise BadInput(
            "--devices",
            f"this process may not use core {', '.join(map(str, missing))}",
            expected=f"some of {format_cores(usable)}",
            got=repr(text),
        )
    return tuple(sorted(cores))


def format_cores(cores: Collection[int]) -> str:
    """The shortest list that `parse_cores` reads back, such as `0-3,6`."""
    parts: list[str] = []
    run: list[int] = []
    for core in [*sorted(cores), None]:
        if run and (core is None or core != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if core is not None:
            run.append(core)
    return ",".join(parts)


def _core_range(part: str, text: str) -> range:
    first, dash, last = part.strip().partition("-")
    # ASCII digits only, and few: int() would also take '1_0' and '²', and a range of a billion.
    numbers = [first, last] if dash else [first, first]
    if not all(n.isascii() and n.isdigit() and len(n) < 6 for n in numbers):
        raise BadInput(
            "--devices", f"{part!r} is no core", expected="such as 0-3,6", got=repr(text)
        )
    start, stop = int(numbers[0]), int(numbers[1])
    if stop < start:
        raise BadInput("--devices", f"range {part!r} runs backwards", got=repr(text))
    return range(start, stop + 1)
