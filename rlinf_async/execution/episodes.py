"""`pipe.rollout(episodes=...)`: batches of whole episodes, in groups that begin in one state."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlinf_async.communication.fields import Field
from rlinf_async.errors import BadInput
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.arranger import Arranger
from rlinf_async.execution.collection import Collection
from rlinf_async.execution.definitions import Envs, Policy
from rlinf_async.execution.layout import Cell, segment_fields
from rlinf_async.execution.records import Batch, Episode, Segment, TrainReport
from rlinf_async.execution.stream import Stream
from rlinf_async.scheduling.ledger import Ticket
from rlinf_async.scheduling.work_list import Episodes, Rounds
from rlinf_async.tracing.waits import StageClock, Wait

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run


class EpisodeCollection(Collection):
    """Collects the work list of each batch; a segment is one cell's part of it."""

    roles: Mapping[str, str] = {role: f"{role}_episodes" for role in ("render", "rollout", "train")}

    def __init__(
        self,
        run: Run,
        arranger: Arranger,
        admission: Admission,
        policy: Policy,
        envs: Envs,
        episodes: Episodes,
        segments: Stream[Segment],
    ) -> None:
        check_episodes(
            episodes, policy, lag=run.options.lag, deterministic=run.options.deterministic
        )
        slots = min(cell.slots for cell in envs.cells)
        horizon = episodes.horizon(len(envs.cells), slots)
        super().__init__(run, arranger, admission, policy, envs, horizon, segments)
        self.episodes = episodes
        self._rounds: dict[int, Rounds] = {}
        self._cut: dict[int, list[int]] = {}

    def segment_fields(self) -> list[Field]:
        """The fields of a row, which has room for the longest list of a cell."""
        slots = max(cell.slots for cell in self.envs.cells)
        return segment_fields(self.envs.spaces, horizon=self.horizon, slots=slots, items=True)

    async def configure(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Make the learner; returns its name and the reason for it. It computes all shards."""
        train = self._crew.host(self._crew.placement.train_host)
        arguments = {**settings, "episodes": dataclasses.asdict(self.episodes)}
        chosen: dict[str, Any] = await train.call(
            "train", "configure", arguments, deadline_s=self._start_s
        )
        return chosen

    async def configure_off_policy(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Refused: replay holds steps, not episodes that are compared."""
        raise BadInput(
            "pipe.update",
            "replay takes segments, and this pipeline collects whole episodes",
            fix="use pipe.rollout(horizon=...)",
        )

    async def train(self, batch: Batch, clock: StageClock) -> TrainReport:
        """As `Collection.train`; the report tells how long the episodes were that were cut."""
        report = await super().train(batch, clock)
        cut = self._cut.pop(batch.index, [])
        if self.episodes.keep_share is None:
            return report
        kept = [episode.length for episode in batch.episodes]
        told = {
            "cut_episodes": float(len(cut)),
            "kept_length_mean": statistics.fmean(kept) if kept else 0.0,
            "cut_length_mean": statistics.fmean(cut) if cut else 0.0,
        }
        return dataclasses.replace(report, metrics={**report.metrics, **told})

    async def _collect_cell(self, cell: Cell) -> None:
        while (ticket := await self._admitted(cell)) is not None:
            segment = await self._collect(cell, ticket)
            self._admission.collected(ticket)
            self._segments.put_nowait(segment)

    async def _collect(self, cell: Cell, ticket: Ticket) -> Segment:
        """All rounds of the cell's part of a batch, one behind the other in one row."""
        row = self._pool.take()
        self._rows_of.setdefault(ticket.batch, []).append(row)
        cells = len(self.envs.cells)
        rounds = self._rounds.setdefault(ticket.batch, Rounds(self.episodes, cells))
        told: list[dict[str, Any]] = []
        start = 0
        while rounds.groups:
            number, items = rounds.number, rounds.items(cell.number)
            scores: dict[int, float] = {}
            if items or not told:
                summary = await self._run_items(cell, ticket, row, start, items)
                told.append(summary)
                start = summary["stop"]
                scores = {e["number"]: e["episode_return"] for e in summary["episodes"]}
            rounds.ran(scores)
            if not self.episodes.replacements:
                break  # nothing depends on how the other cells fare
            self._admission.wake()
            with self._clock.cell(Wait.INPUT):
                while rounds.number == number:
                    await self._admission.changed()
        self._close_rounds(ticket.batch, rounds)
        self._cut.setdefault(ticket.batch, []).extend(n for each in told for n in each["cut"])
        return self._segment(cell, ticket, row, told)

    async def _run_items(
        self, cell: Cell, ticket: Ticket, row: int, start: int, items: list[int]
    ) -> dict[str, Any]:
        plan = self.episodes
        arguments = {
            "cell": cell.number,
            "batch": ticket.batch,
            "version": ticket.version,
            "row": row,
            "start": start,
            "items": items,
            "size": plan.size,
            "limit": plan.limit,
            "keep_share": plan.keep_share,
        }
        placement = self._crew.placement
        host = self._crew.host(placement.rollout_host(cell.number))
        central = placement.policy == "central" and placement.mode != "serial"
        async with self._gate(cell), self._devices():
            with (
                self._clock.cell(Wait.WORKING),
                self.arranger.times.running("collect"),
                self._run.recorder.span("rollout", items=len(items)),
            ):
                summary: dict[str, Any]
                if central:
                    method = "collect_items_central"
                    summary = await self._collect_central(cell, host, arguments, method)
                else:
                    summary = await self._timed_call(host, "rollout", "collect_items", arguments)
        self._check_lag(ticket, summary["oldest_version"])
        return summary

    def _close_rounds(self, batch: int, rounds: Rounds) -> None:
        """Forget the lists of batches that every cell has left behind."""
        rounds.cells_done += 1
        if rounds.cells_done == len(self.envs.cells):
            del self._rounds[batch]

    def _segment(self, cell: Cell, ticket: Ticket, row: int, told: list[dict[str, Any]]) -> Segment:
        return Segment(
            cell=cell.number,
            batch=ticket.batch,
            row=row,
            first_slot=cell.first_slot,
            slots=cell.slots,
            horizon=self.horizon,
            oldest_version=min(each["oldest_version"] for each in told),
            newest_version=max(each["newest_version"] for each in told),
            env_steps=sum(each["env_steps"] for each in told),
            episodes=tuple(Episode(**each) for part in told for each in part["episodes"]),
        )


def extent_of(horizon: int | None, episodes: Episodes | None) -> Any:
    """What a segment covers: so many steps, or a list of whole episodes; BadInput for neither."""
    if (horizon is None) == (episodes is None):
        raise BadInput("pipe.rollout", "give horizon=STEPS, or episodes=Episodes(...)")
    if horizon is not None and horizon < 1:
        raise BadInput("pipe.rollout", "horizon", expected="at least 1", got=horizon)
    return horizon if episodes is None else episodes


def check_episodes(episodes: Episodes, policy: Policy, *, lag: str, deterministic: bool) -> None:
    """BadInput for what cannot be collected as whole episodes."""
    who = "pipe.rollout(episodes=...)"
    if not deterministic:
        raise BadInput(
            "--no-deterministic",
            "policy calls for whole episodes are not merged: each slot has its own noise",
            fix="leave it out",
        )
    if policy.memory:
        raise BadInput(
            who,
            f"{policy.name} remembers, and learning from groups replays single steps",
            expected="a policy without memory",
        )
    if episodes.keep_share is not None and lag == "exact":
        raise BadInput(
            who,
            "keep_share drops the longest episodes, which exact lag does not",
            fix="leave keep_share out, or use --lag free",
        )
