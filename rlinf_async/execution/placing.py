"""From the options and the environments of a run to its hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlinf_async.errors import BadInput
from rlinf_async.execution.definitions import Envs
from rlinf_async.execution.drawing import with_draw_host
from rlinf_async.execution.logs import get_logger
from rlinf_async.scheduling.arrangements import arrangements
from rlinf_async.scheduling.grammar import read_placement
from rlinf_async.scheduling.placement import Mode, Placement, PolicyPlace, place

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run

log = get_logger()


def placed(
    run: Run, envs: Envs, fixed: Placement | str | None, max_lag: int
) -> tuple[Placement, dict[str, Placement]]:
    """Where `run` works on `envs`, and what its hosts may be arranged as while it goes on.

    Raises:
        BadInput: options that do not go together.
    """
    fixed = None if run.planning else fixed or run.options.placement or None
    if isinstance(fixed, str):
        fixed = read_placement(fixed, cores=run.cores, cells=len(envs.cells))
    if fixed is not None:
        _check_fixed(fixed, envs)
        _check_merging(run, fixed)
        return with_draw_host(_with_torch(fixed, envs), envs), {}
    mode, reason = _mode(run, max_lag)
    if reason:
        log.info("mode_chosen", mode=mode, reason=reason)
    options = run.options
    placement = place(
        mode=mode,
        cores=run.cores,
        cells=len(envs.cells),
        hosts=options.hosts,
        policy=_policy(run, envs, mode),
        depth=options.depth,
    )
    _check_merging(run, placement)
    placement = with_draw_host(_with_torch(placement, envs), envs)
    if run.planning or (options.mode == "auto" and mode == "hybrid"):
        choices = arrangements(placement, run.cores)
        return placement, {name: _with_torch(each, envs) for name, each in choices.items()}
    return placement, {}


def _with_torch(placement: Placement, envs: Envs) -> Placement:
    """The placement without gradients where the interpreter of the environments has no torch."""
    if envs.interpreter is None:
        return placement
    render = {plan.name for plan in placement.hosts if "render" in plan.roles}
    return replace(
        placement, gradient=tuple(name for name in placement.gradient if name not in render)
    )


def _check_merging(run: Run, placement: Placement) -> None:
    """Refuse an option that would do nothing."""
    beside = placement.policy == "beside" or placement.mode == "serial"
    if not run.options.deterministic and beside:
        raise BadInput(
            "--no-deterministic",
            "only a central policy in a process of its own acts for several cells at once",
            got=f"policy {placement.policy} in {placement.mode} mode",
            fix="add --policy central, or leave --no-deterministic out",
        )


def _check_fixed(placement: Placement, envs: Envs) -> None:
    if envs.interpreter is not None and placement.policy != "central":
        raise BadInput(
            "placement",
            f"{envs.name} lives in an interpreter of its own, which has no torch",
            got="render+rollout in one process",
            fix="a central policy: 'render=...; rollout=...; train=...'",
        )


def _mode(run: Run, max_lag: int) -> tuple[Mode, str]:
    """The mode that hosts are started for, and why if it was chosen here."""
    if run.planning and len(run.cores) > 1:
        return "hybrid", "every arrangement of its hosts is planned for"
    if run.options.mode != "auto":
        return run.options.mode, ""
    if len(run.cores) == 1:
        return "collocated", "one core is all there is"
    if max_lag == 0:
        return "collocated", "with max_lag 0 nothing overlaps, so each phase gets all cores in turn"
    return "hybrid", "each arrangement of its hosts is measured while the run goes on"


def _policy(run: Run, envs: Envs, mode: Mode) -> PolicyPlace:
    if envs.interpreter is None:
        return run.options.policy or "beside"
    if mode == "serial":
        raise BadInput(
            "--mode",
            f"{envs.name} lives in an interpreter of its own, and serial mode has one process",
            fix="use --mode collocated",
        )
    if run.options.policy == "beside":
        raise BadInput(
            "--policy",
            f"{envs.name} lives in an interpreter of its own, which has no torch",
            expected="central",
            got="beside",
            fix="use --policy central, or leave the option out",
        )
    if run.options.policy is None:
        log.info("policy_is_central", why=f"the interpreter of {envs.name} has no torch")
    return "central"
