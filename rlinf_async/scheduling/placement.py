"""Which host runs what on which cores: decided once, from the configuration alone.

serial         one host in the controller's process runs all
collocated     hosts share all cores between the phases, which alternate
disaggregated  train has the last core for itself, rollout and render overlap with it on the others
hybrid         rollout and render have all cores, and leave the last one whenever train runs

Policy `beside`: each host renders its cells and acts for them. Policy `central`: hosts only render,
and one host named `policy` acts for all cells; it waits while they step, so it shares their cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlinf_async.errors import BadInput, nearest

Mode = Literal["serial", "collocated", "disaggregated", "hybrid"]
Sharing = Literal["alternate", "yield", "own"]
"""How collecting and training share cores. `alternate`: one of them at a time. `yield`: collecting
leaves the cores of training for as long as it runs. `own`: they have none in common."""
PolicyPlace = Literal["beside", "central"]

MODES = ("serial", "collocated", "disaggregated", "hybrid")
POLICY_PLACES = ("beside", "central")


_SHARING: dict[Sharing, str] = {
    "alternate": "collecting and training alternate",
    "yield": "collecting and training overlap, and collecting leaves the cores of training to it",
    "own": "collecting and training overlap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """One worker process."""

    name: str
    cores: tuple[int, ...]
    """Its affinity; other hosts may have the same cores."""
    roles: tuple[str, ...]
    """Of `render`, `rollout`, `train`, in this order."""
    cells: tuple[int, ...]
    """The cells that it renders or acts for; empty for a host that only trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All hosts of a run."""

    mode: Mode
    policy: PolicyPlace
    hosts: tuple[HostPlan, ...]
    sharing: Sharing
    depth: int | None = None
    """K, cells of one render host that are under way at once; None: all of them."""
    gradient: tuple[str, ...] = ()
    """Hosts that compute shards of the gradient beside the learner, where it comes in shards."""
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""

    def render_host(self, cell: int) -> HostPlan:
        """The host that steps the environments of `cell`; KeyError if no cell has that number."""
        return self._of("render", cell)

    def rollout_host(self, cell: int) -> HostPlan:
        """The host that acts for `cell`; KeyError if no cell has that number."""
        return self._of("rollout", cell)

    @property
    def train_host(self) -> HostPlan:
        """The host of the learner."""
        return next(host for host in self.hosts if "train" in host.roles)

    def describe(self) -> list[str]:
        """Lines for the log and for the terminal."""
        depth = "" if self.depth is None else f", depth {self.depth}"
        lines = [f"{self.mode}, policy {self.policy}{depth}: {_SHARING[self.sharing]}"]
        for host in self.hosts:
            cells = f", cells {_ranges(host.cells)}" if host.cells else ""
            roles = host.roles
            if host.name in self.gradient and "gradient" not in roles:
                roles = (*roles, "gradient")
            lines.append(f"{host.name}: {'+'.join(roles)} on cores {_ranges(host.cores)}{cells}")
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def _of(self, role: str, cell: int) -> HostPlan:
        for host in self.hosts:
            if role in host.roles and cell in host.cells:
                return host
        raise KeyError(f"no host has the role {role} for cell {cell}")


def place(
    *,
    mode: Mode,
    cores: Sequence[int],
    cells: int,
    hosts: int | None = None,
    policy: PolicyPlace = "beside",
    depth: int | None = None,
) -> Placement:
    """Place `cells` cells on `cores`; `hosts` counts the processes that render.

    Default: one host per core that may render, at most one per cell. BadInput for what cannot
    work. Never changes any number that the run computes: cells do not depend on it.
    """
    _check(mode, tuple(cores), cells, hosts, policy)
    makers = {
        "collocated": _collocated,
        "disaggregated": _disaggregated,
        "hybrid": _hybrid,
    }
    if mode == "serial":
        return _serial(tuple(cores), cells, policy)
    placed = makers[mode](tuple(cores), cells, hosts, policy)
    return replace(placed, depth=depth)


def _serial(cores: tuple[int, ...], cells: int, policy: PolicyPlace) -> Placement:
    host = HostPlan(
        name="serial",
        cores=cores,
        roles=("render", "rollout", "train"),
        cells=tuple(range(cells)),
    )
    notes = ("policy central is the same as beside in one process",) if policy == "central" else ()
    return Placement(mode="serial", policy=policy, hosts=(host,), sharing="alternate", notes=notes)


def _collocated(
    cores: tuple[int, ...], cells: int, hosts: int | None, policy: PolicyPlace
) -> Placement:
    count = hosts or min(len(cores), cells)
    plans = _rendering(cores, cells, count, policy)
    trainer = len(plans) - 1 if policy == "central" else 0
    plans[trainer] = HostPlan(
        name=plans[trainer].name,
        cores=plans[trainer].cores,
        roles=(*plans[trainer].roles, "train"),
        cells=plans[trainer].cells,
    )
    return Placement(
        mode="collocated",
        policy=policy,
        hosts=tuple(plans),
        sharing="alternate",
        gradient=gradient_hosts(plans),
        notes=_core_notes(cores, count),
    )


def _disaggregated(
    cores: tuple[int, ...], cells: int, hosts: int | None, policy: PolicyPlace
) -> Placement:
    own = cores[:-1] or cores
    shared = f"train and rollout share core {cores[0]}: it is the only one"
    notes = (shared,) if len(cores) == 1 else ()
    count = hosts or min(len(own), cells)
    train = HostPlan(name="train", cores=cores[-1:], roles=("train",), cells=())
    return Placement(
        mode="disaggregated",
        policy=policy,
        hosts=(*_rendering(own, cells, count, policy), train),
        sharing="own",
        notes=(*notes, *_core_notes(own, count)),
    )


def _hybrid(
    cores: tuple[int, ...], cells: int, hosts: int | None, policy: PolicyPlace
) -> Placement:
    if len(cores) == 1:
        raise BadInput(
            "placement",
            "hybrid mode needs a core that collecting keeps while training runs",
            expected="at least 2 cores",
            got=f"core {cores[0]}",
            fix="use mode collocated",
        )
    count = hosts or min(len(cores), cells)
    train = HostPlan(name="train", cores=cores[-1:], roles=("train",), cells=())
    return Placement(
        mode="hybrid",
        policy=policy,
        hosts=(*_rendering(cores, cells, count, policy), train),
        sharing="yield",
        notes=_core_notes(cores, count),
    )


def _rendering(
    cores: tuple[int, ...], cells: int, count: int, policy: PolicyPlace
) -> list[HostPlan]:
    """`count` hosts with contiguous balanced cells, and the central policy's host if asked for."""
    roles = ("render",) if policy == "central" else ("render", "rollout")
    plans = [
        HostPlan(name=f"host-{index}", cores=(cores[index % len(cores)],), roles=roles, cells=share)
        for index, share in enumerate(deal(cells, count))
    ]
    if policy == "central":
        everyone = tuple(range(cells))
        plans.append(HostPlan(name="policy", cores=cores, roles=("rollout",), cells=everyone))
    return plans


def gradient_hosts(hosts: Sequence[HostPlan]) -> tuple[str, ...]:
    """Hosts with cores to spare while nothing is collected: one for each core but the learner's."""
    train = next(host for host in hosts if "train" in host.roles)
    everything = {core for host in hosts for core in host.cores}
    taken = set(train.cores) if set(train.cores) != everything else set()
    found: list[str] = []
    for host in hosts:
        works = {"render", "rollout", "gradient"} & set(host.roles)
        if (
            works
            and host is not train
            and not taken & set(host.cores)
            and len(found) + 1 < len(everything)
        ):
            taken |= set(host.cores)
            found.append(host.name)
    return tuple(found)


def deal(cells: int, count: int) -> list[tuple[int, ...]]:
    """`count` shares of contiguous cells, as even as they go."""
    bounds = [cells * index // count for index in range(count + 1)]
    return [tuple(range(bounds[i], bounds[i + 1])) for i in range(count)]


def _core_notes(cores: tuple[int, ...], count: int) -> tuple[str, ...]:
    if count > len(cores):
        return (f"{count} hosts share {len(cores)} cores",)
    if count < len(cores):
        return (f"no host renders on cores {_ranges(cores[count:])}: there are {count} hosts",)
    return ()


def _check(mode: str, cores: tuple[int, ...], cells: int, hosts: int | None, policy: str) -> None:
    for name, value, known in (("mode", mode, MODES), ("policy", policy, POLICY_PLACES)):
        if value not in known:
            raise BadInput(
                "placement",
                f"unknown {name} {value!r}",
                expected=" or ".join(known),
                fix=nearest(value, known),
            )
    if not cores or len(set(cores)) != len(cores):
        raise BadInput("placement", "devices must be at least one core, each once", got=list(cores))
    if cells < 1:
        raise BadInput("placement", "there is nothing to place", expected="cells >= 1", got=cells)
    if hosts is not None:
        _check_hosts(mode, cells, hosts)


def _check_hosts(mode: str, cells: int, hosts: int) -> None:
    if mode == "serial" and hosts != 1:
        raise BadInput(
            "placement",
            "serial mode runs in one process",
            got=f"hosts = {hosts}",
            fix="leave hosts out, or use mode collocated",
        )
    if hosts < 1:
        raise BadInput("placement", "too few hosts", expected="hosts >= 1", got=hosts, fix="use 1")
    if hosts > cells:
        raise BadInput(
            "placement",
            "a host needs at least one cell",
            expected=f"hosts <= {cells}, the number of cells",
            got=hosts,
            fix=f"use hosts = {cells}, more environments, or smaller cells",
        )


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
