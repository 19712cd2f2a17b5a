"""Acting on plans: the arrangement in force, who moves where, and what the planner hears."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from rlinf_async.errors import BadInput, PlanReady, nearest
from rlinf_async.execution.crew import Crew
from rlinf_async.execution.leases import Leases
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.phase_times import PhaseTimes
from rlinf_async.execution.plan_report import plan_document, predicted_on
from rlinf_async.scheduling.arrangements import NARROW, lease_devices, sizes, while_training
from rlinf_async.scheduling.leases import LeaseTable
from rlinf_async.scheduling.ledger import Ledger
from rlinf_async.scheduling.live_costs import LiveCosts
from rlinf_async.scheduling.live_planner import Choice, LivePlanner
from rlinf_async.scheduling.placement import Placement
from rlinf_async.tracing.recorder import current

log = get_logger()


class Arranger:
    """Holds the arrangement in force; changes it between iterations."""

    def __init__(
        self,
        crew: Crew,
        records: Path,
        choices: Mapping[str, Placement],
        *,
        only_plan: bool = False,
    ) -> None:
        """`choices`: what the hosts may be arranged as; empty for a placement that stays.

        With `only_plan` the first decision ends the job, as `PlanReady`.
        """
        self._only_plan = only_plan
        self.crew, self._records = crew, records
        self._choices = dict(choices)
        self._planner: LivePlanner | None = None
        self._pinned = False
        self._shards = 1
        self._written = 0
        self.times = PhaseTimes()
        self.leases = Leases(LeaseTable(lease_devices(crew.placement)))

    def start(self, env_steps: int, ledger: Ledger) -> None:
        """Collecting begins; where there is a choice a planner makes it. `env_steps` of a batch."""
        self.times.take()
        if not self._choices:
            return
        choices = self._sized()
        costs = LiveCosts(env_steps=env_steps, max_lag=ledger.max_lag)
        self._planner = LivePlanner(choices, costs, iterations=ledger.iterations)
        if not self._pinned:
            self._arrange(choices[0].name)

    def spread(self, shards: int) -> tuple[str, ...]:
        """The gradient comes in so many shards; returns the hosts that may compute some."""
        self._shards = shards
        if self._planner is not None:
            self._planner.resize(self._sized())
        wanted = [each.gradient for each in (self.crew.placement, *self._choices.values())]
        return max(wanted, key=len)

    def pin(self, name: str) -> None:
        """Arrange the hosts as `name` and keep them so; `auto` gives them back to the planner.

        Raises:
            BadInput: there is no such arrangement of these hosts.
        """
        if name == "auto" and self._choices:
            self._pinned = False
            if self._planner is not None:
                self._planner.resume()
                self._arrange(self._planner.current)
            return
        if name not in self._choices:
            raise BadInput(
                "pipe.pin",
                f"these hosts cannot be arranged as {name!r}",
                expected=" or ".join((*self._choices, "auto"))
                if self._choices
                else "a run of --mode auto with max_lag > 0 on two cores or more",
                fix=nearest(name, self._choices),
            )
        self._pinned = True
        self._arrange(name)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """The learner is at work inside the block: whoever yields leaves its cores."""
        moves = while_training(self.crew.placement)
        self._move(moves)
        try:
            with self.times.running("train"):
                yield
        finally:
            if moves:
                self._move({plan.name: plan.cores for plan in self.crew.placement.hosts})

    def iteration_ended(self) -> None:
        """A version went live: the planner hears of it and may rearrange."""
        times = self.times.take()
        if self._planner is not None and not self._pinned:
            before = self._planner.current
            after = self._planner.iteration(times)
            self._tell()
            if after != before:
                self._arrange(after)

    def describe(self) -> str:
        """The arrangement in force and how it came to be, for displays."""
        mode = self.crew.placement.mode
        if self._planner is None:
            return mode
        return f"{mode} ({'pinned' if self._pinned else self._planner.state})"

    @property
    def settled(self) -> bool:
        """Whether no trial is under way or to come, unless the load changes."""
        return self._planner is None or self._planner.state == "held"

    def _sized(self) -> list[Choice]:
        return [
            Choice(name=name, sizes=sizes(each, self._shards), probe=name == NARROW)
            for name, each in self._choices.items()
        ]

    def _arrange(self, name: str) -> None:
        placement = self._choices[name]
        current().instant(f"arrange {name}")
        self.leases.rearrange(lease_devices(placement))
        self.crew.placement = placement
        self._move({plan.name: plan.cores for plan in placement.hosts})

    def _move(self, cores: Mapping[str, tuple[int, ...]]) -> None:
        for name, wanted in cores.items():
            # A host that is not started yet starts where the placement says.
            if (host := self.crew.find(name)) is not None:
                host.move(wanted)

    def _tell(self) -> None:
        """Log and keep the decisions that are new."""
        assert self._planner is not None
        if self._only_plan and self._planner.records:
            document = plan_document(self._planner, self.crew)
            raise PlanReady(document, functools.partial(predicted_on, self._planner))
        new = self._planner.records[self._written :]
        self._written += len(new)
        for record in new:
            log.info("plan", chosen=record.chosen, reason=record.reason)
            current().instant(f"plan {record.chosen}", record.iteration)
            with self._records.open("ab") as file:
                file.write(_line(record.to_json()))


def _line(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
