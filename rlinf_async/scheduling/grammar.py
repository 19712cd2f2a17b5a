"""Placements in words, for those who know better:  render+rollout=0-2; train=3

    placement   entries, separated by ;
    entry       PHASES=DEVICES[:N][/M]   or   depth=K
    PHASES      render, rollout and train, joined by + where they share processes
    DEVICES     core numbers and ranges, such as 0-3,6
    :N          N processes on each device
    /M          one process for every M devices; the last one may have fewer

Each phase stands in one entry. `render+rollout` acts beside the environments; apart, one central
policy acts for all, so `rollout` is one process on all its devices. So is `train` without :N or /M;
with them the first process holds the learner, and the others compute shards of its gradient. Cells
are dealt to the processes that render, as evenly as they go. How training and collecting share
follows from their devices: none in common is disaggregated, all in common collocated (they
alternate), some in common hybrid (collecting leaves them while training runs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.errors import BadInput, nearest
from rlinf_async.scheduling.placement import (
    HostPlan,
    Mode,
    Placement,
    Sharing,
    deal,
    gradient_hosts,
)

WHO = "--placement"
PHASES = ("render", "rollout", "train")
EXAMPLE = "such as 'render+rollout=0-2; train=3'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Phases that share processes."""

    phases: tuple[str, ...]
    devices: tuple[int, ...]
    per_device: int = 1
    per_process: int = 1
    counted: bool = False
    """Whether :N or /M was given."""

    def processes(self) -> list[tuple[int, ...]]:
        """The devices of each process."""
        if self.per_process > 1:
            firsts = range(0, len(self.devices), self.per_process)
            return [self.devices[first : first + self.per_process] for first in firsts]
        return [(device,) for device in self.devices for _ in range(self.per_device)]


def read_placement(text: str, *, cores: Sequence[int], cells: int) -> Placement:
    """The placement that `text` describes, of `cells` cells on some of `cores`.

    Raises:
        BadInput: what is no placement, or one that cannot work: with the rule and one that works.
    """
    entries, depth = _parse(text, cores)
    by_phase = {phase: entry for entry in entries for phase in entry.phases}
    if missing := [phase for phase in PHASES if phase not in by_phase]:
        near = f"{text.strip().rstrip(';')}; {'+'.join(missing)}={_text(cores[-1:])}"
        raise BadInput(WHO, f"no devices for {' and '.join(missing)}", got=text, fix=f"'{near}'")
    render, rollout, train = (by_phase[phase] for phase in PHASES)
    _check_processes(render, rollout, train, cells)
    hosts = _hosts(render, rollout, train, cells)
    sharing = _sharing(render, rollout, train)
    helping = tuple(host.name for host in hosts if "gradient" in host.roles)
    return Placement(
        mode=_mode(sharing, render, rollout, train),
        policy="beside" if render is rollout else "central",
        hosts=hosts,
        sharing=sharing,
        gradient=gradient_hosts(hosts) if sharing == "alternate" else helping,
        depth=depth,
    )


def _hosts(render: _Entry, rollout: _Entry, train: _Entry, cells: int) -> tuple[HostPlan, ...]:
    processes = render.processes()
    plans = []
    for number, (devices, share) in enumerate(
        zip(processes, deal(cells, len(processes)), strict=True)
    ):
        # The first of several processes that may train does.
        roles = tuple(p for p in render.phases if p != "train" or number == 0)
        plans.append(HostPlan(name=f"host-{number}", cores=devices, roles=roles, cells=share))
    if rollout is not render:
        everyone = tuple(range(cells))
        plans.append(
            HostPlan(name="policy", cores=rollout.devices, roles=rollout.phases, cells=everyone)
        )
    if train is not render and train is not rollout:
        # Whoever does not count the processes of training means one.
        shares = train.processes() if train.counted else [train.devices]
        for number, devices in enumerate(shares):
            name, roles = (f"train-{number}", ("gradient",)) if number else ("train", ("train",))
            plans.append(HostPlan(name=name, cores=devices, roles=roles, cells=()))
    return tuple(plans)


def _sharing(render: _Entry, rollout: _Entry, train: _Entry) -> Sharing:
    collecting = {*render.devices, *rollout.devices}
    shared = collecting & set(train.devices)
    if train is render or train is rollout or shared == collecting:
        return "alternate"
    return "yield" if shared else "own"


def _mode(sharing: Sharing, render: _Entry, rollout: _Entry, train: _Entry) -> Mode:
    if sharing == "own":
        return "disaggregated"
    same = {*render.devices, *rollout.devices} == set(train.devices)
    return "collocated" if same and sharing == "alternate" else "hybrid"


def _check_processes(render: _Entry, rollout: _Entry, train: _Entry, cells: int) -> None:
    count = len(render.processes())
    if count > cells:
        near = _entry(render.phases, render.devices[:cells])
        raise BadInput(
            WHO,
            f"{count} processes render, and each needs a cell",
            expected=f"at most {cells}, the number of cells",
            fix=f"'{near}', more environments, or smaller cells",
        )
    if rollout is not render and rollout.counted:
        raise BadInput(
            WHO,
            "rollout is one process on all its devices",
            got=f"{_entry(rollout.phases, rollout.devices)} with :N or /M",
            fix=f"'{_entry(rollout.phases, rollout.devices)}'",
        )


def _parse(text: str, cores: Sequence[int]) -> tuple[list[_Entry], int | None]:
    entries: list[_Entry] = []
    depth: int | None = None
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise BadInput(WHO, f"{part!r} has no =", expected=EXAMPLE, got=text)
        if name == "depth":
            depth = _number(value, part)
            continue
        entries.append(_read_entry(name, value, part, cores))
    phases = [phase for entry in entries for phase in entry.phases]
    if twice := sorted({phase for phase in phases if phases.count(phase) > 1}):
        raise BadInput(WHO, f"{twice[0]} stands in two entries", expected="one", got=text)
    return entries, depth


def _read_entry(name: str, value: str, part: str, cores: Sequence[int]) -> _Entry:
    phases = tuple(phase.strip() for phase in name.split("+"))
    for phase in phases:
        if phase not in PHASES:
            raise BadInput(
                WHO,
                f"unknown phase {phase!r}",
                expected=", ".join((*PHASES, "depth")),
                fix=nearest(phase, (*PHASES, "depth")),
            )
    rest, slash, per_process = value.partition("/")
    listed, colon, per_device = rest.partition(":")
    if slash and colon:
        raise BadInput(WHO, ":N and /M exclude each other", got=part, fix=f"'{name}={rest}'")
    return _Entry(
        phases=tuple(phase for phase in PHASES if phase in phases),
        devices=_devices(listed, part, cores),
        per_device=_number(per_device, part) if colon else 1,
        per_process=_number(per_process, part) if slash else 1,
        counted=bool(slash or colon),
    )


def _devices(listed: str, part: str, cores: Sequence[int]) -> tuple[int, ...]:
    found: list[int] = []
    for piece in listed.split(","):
        first, dash, last = piece.strip().partition("-")
        start = _number(first, part, least=0)
        found.extend(range(start, _number(last, part, least=start) + 1 if dash else start + 1))
    if unknown := [core for core in found if core not in cores]:
        raise BadInput(
            WHO,
            f"this run has no device {unknown[0]}",
            expected=f"some of {_text(cores)}",
            got=part,
            fix=f"'{part.partition('=')[0].strip()}={_text(cores)}'",
        )
    if len(set(found)) < len(found):
        raise BadInput(WHO, "a device is named twice", got=part)
    return tuple(sorted(found))


def _number(text: str, part: str, *, least: int = 1) -> int:
    # ASCII digits only, and few: int() takes more than one would write here.
    if not (text.isascii() and text.isdigit() and len(text) < 6) or int(text) < least:
        raise BadInput(WHO, f"{text!r} is no number from {least}", expected=EXAMPLE, got=part)
    return int(text)


def _entry(phases: Sequence[str], devices: Sequence[int]) -> str:
    return f"{'+'.join(phases)}={_text(devices)}"


def _text(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices))
