"""The rollout stage and the calls around it: cells collect, batches train, versions go live."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.fields import Field
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import EngineError, PeerGone, PeerTimeout
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.crew import Crew
from rlinf_async.execution.definitions import Envs, Policy
from rlinf_async.execution.drawing import open_drawing
from rlinf_async.execution.hosts import Host
from rlinf_async.execution.layout import Cell, segment_fields
from rlinf_async.execution.leases import Leases
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.records import Batch, Episode, Segment, TrainReport, record_to_json
from rlinf_async.execution.roles import role_reference
from rlinf_async.execution.stream import Stream
from rlinf_async.execution.weights import WeightRing, ring_rows, weights_fields
from rlinf_async.scheduling.leases import LeaseTable
from rlinf_async.scheduling.ledger import Ticket
from rlinf_async.scheduling.placement import HostPlan
from rlinf_async.tracing.waits import StageClock, Wait

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run

log = get_logger()

CENTRAL_MARGIN_S = 5.0
"""The policy's own calls to render hosts end so long before the call to the policy: they know
better who is stuck."""
DEADLINE_OVER_SLOWEST = 20.0
"""A call may take so many times the slowest one so far before its worker is taken for stuck."""


class Collection:
    """One policy acting in one set of environments, and the learner that it is trained by."""

    def __init__(
        self,
        run: Run,
        crew: Crew,
        admission: Admission,
        policy: Policy,
        envs: Envs,
        horizon: int,
        segments: Stream[Segment],
    ) -> None:
        self.envs, self.horizon = envs, horizon
        self._run, self._crew, self._admission = run, crew, admission
        self._policy, self._segments = policy, segments
        ledger = admission.ledger
        self.rows = (ledger.max_lag + 1) * ledger.cells
        shared = ("rollout", "train") if crew.placement.exclusive else ()
        devices = {p: ("all",) if p in shared else (p,) for p in ("rollout", "train")}
        self._start_s = run.options.start_timeout_s
        self._leases = Leases(LeaseTable(devices))
        self._clock = CellsClock(run.recorder.stage("rollout"))
        self._pool: RowPool
        self._ring: WeightRing
        self._weights: RowPool
        self._built = asyncio.Event()
        self._drawing: dict[str, Any] | None = None
        self._rows_of: dict[int, list[int]] = {}
        self._next_weights_row = -1
        self._slowest_s: dict[str, float] = {}

    def segment_fields(self) -> list[Field]:
        """The fields of a segment's row."""
        slots = max(cell.slots for cell in self.envs.cells)
        return segment_fields(
            self.envs.spaces, horizon=self.horizon, slots=slots, memory=self._policy.memory
        )

    async def run(self) -> None:
        """Start the hosts, make version 0 live, collect every batch; then keep watch."""
        self._pool = await self._crew.make_pool("segments", self.segment_fields(), self.rows)
        await self._crew.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._crew.watch(), name="watch")
            await self._build()
            self._run.progress.collecting()
            cells = [
                group.create_task(self._collect_cell(cell), name=f"cell-{cell.number}")
                for cell in self.envs.cells
            ]
            await asyncio.wait(cells)
            self._segments.close()

    async def configure(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Make the learner; returns its name and the reason for it."""
        train = self._crew.host(self._crew.placement.train_host)
        chosen: dict[str, Any] = await train.call(
            "train", "configure", settings, deadline_s=self._start_s
        )
        return chosen

    async def train(self, batch: Batch, clock: StageClock) -> TrainReport:
        """Train on `batch` under a lease of the train phase; its version lies in a row then."""
        row = await self._ring.free_row(clock)
        train = self._crew.host(self._crew.placement.train_host)
        async with self._leases.hold("train", clock=clock):
            with self._run.recorder.span("train", items=batch.env_steps):
                arguments = {"batch": record_to_json(batch), "row": row}
                metrics = await self._timed_call(train, "train", "train", arguments)
        self._next_weights_row = row
        self._admission.trained(batch.index)
        return TrainReport(
            batch=batch.index,
            version=batch.index + 1,
            env_steps=batch.env_steps,
            lag_versions=batch.index - batch.oldest_version,
            metrics=metrics,
            episodes=batch.episodes,
        )

    async def publish(self, version: int) -> None:
        """Make `version` live everywhere, then free the rows of the batch that it came from."""
        with self._run.recorder.span("publish"):
            await self._ring.publish(version, self._next_weights_row)
        # Freed only now: freeing earlier would let a segment start with a version not yet live.
        for row in self._rows_of.pop(version - 1):
            self._pool.give(row)
        self._admission.published(version)

    async def built(self) -> None:
        """Wait until all workers are built and version 0 is live."""
        async with deadline(self._start_s, waiting_for="the workers to be built"):
            await self._built.wait()

    async def share_weights(self, host: Host) -> None:
        """Let a host that was added later read weights."""
        await host.map_pool(self._weights)

    @contextlib.contextmanager
    def live_weights(self) -> Iterator[tuple[int, int]]:
        """The newest live version and its row, which is not written to within the block."""
        version = self._admission.ledger.newest
        with self._ring.keep(version) as row:
            yield version, row

    async def save(self) -> None:
        """Write the final checkpoint."""
        train = self._crew.host(self._crew.placement.train_host)
        arguments = {
            "folder": str(self._run.folder.checkpoint),
            "manifest": self._manifest(),
            "policy": self.policy_document(),
        }
        await train.call("train", "save", arguments, deadline_s=self._start_s)

    async def _build(self) -> None:
        """Create all workers side by side, share the rows, make version 0 live."""
        crew = self._crew
        self._drawing = await open_drawing(self._run, crew, self.envs)
        async with asyncio.TaskGroup() as group:
            described = group.create_task(self._create_train())
            for plan, host in crew.with_role("render"):
                group.create_task(self._create(host, "render", self._render_arguments(plan)))
            for plan, host in crew.with_role("rollout"):
                group.create_task(self._create(host, "rollout", self._rollout_arguments(plan)))
            group.create_task(crew.connect())
            group.create_task(crew.start_user_workers(self._pool))
        weights = await crew.make_pool(
            "weights",
            weights_fields(described.result()["fields"]),
            ring_rows(self._admission.ledger.max_lag),
        )
        async with asyncio.TaskGroup() as group:
            for plan in crew.placement.hosts:
                for pool in (self._pool, weights):
                    group.create_task(crew.host(plan).map_pool(pool))
        receivers = [host for _, host in crew.with_role("rollout")]
        self._ring = WeightRing(weights, self._admission, receivers, self._reply_s("adopt"))
        row = self._ring.first_row()
        train = crew.host(crew.placement.train_host)
        await train.call("train", "initialise", {"row": row}, deadline_s=self._start_s)
        await self._ring.publish(0, row)
        self._weights = weights
        self._built.set()

    async def _create(self, host: Host, role: str, arguments: dict[str, Any]) -> None:
        if role == "render":
            limits = {"limit_s": self._run.options.env_timeout_s, "first_s": self._start_s}
            await host.call("host", "watch", limits, deadline_s=self._start_s)
        command = {"name": role, "reference": role_reference(role), "arguments": arguments}
        await host.call("host", "create", command, deadline_s=self._start_s)

    async def _create_train(self) -> dict[str, Any]:
        host = self._crew.host(self._crew.placement.train_host)
        options, ledger = self._run.options, self._admission.ledger
        arguments = {
            "policy": self._policy.factory,
            "spaces": self.envs.spaces.to_json(),
            "normalize": self._policy.normalize_observations,
            "run_seed": options.seed,
            "iterations": ledger.iterations,
            "max_lag": ledger.max_lag,
            "lag": options.lag,
            "dumps": str(self._run.folder.path / "dumps"),
            "init_from": None if options.init_from is None else str(options.init_from),
        }
        await self._create(host, "train", arguments)
        described: dict[str, Any] = await host.call(
            "train", "describe", {}, deadline_s=self._start_s
        )
        return described

    def _render_arguments(self, plan: HostPlan) -> dict[str, Any]:
        cells = {str(c.number): [c.first_slot, c.slots] for c in self._cells_of(plan)}
        return {
            "env": self.envs.env,
            "run_seed": self._run.options.seed,
            "cells": cells,
            "squash": self._policy.squash,
            "drawing": self._drawing,
        }

    def _rollout_arguments(self, plan: HostPlan) -> dict[str, Any]:
        cells = self._cells_of(plan)
        placement, options = self._crew.placement, self._run.options
        return {
            "policy": self._policy.factory,
            "spaces": self.envs.spaces.to_json(),
            "normalize": self._policy.normalize_observations,
            "horizon": self.horizon,
            "run_seed": options.seed,
            "cells": {str(cell.number): cell.slots for cell in cells},
            "render_hosts": {
                str(cell.number): placement.render_host(cell.number).name for cell in cells
            },
            "free_lag": options.lag == "free",
            "deadline_s": options.reply_timeout_s,
        }

    def _cells_of(self, plan: HostPlan) -> list[Cell]:
        return [cell for cell in self.envs.cells if cell.number in plan.cells]

    async def _collect_cell(self, cell: Cell) -> None:
        while (ticket := await self._admitted(cell)) is not None:
            async with self._devices():
                with self._clock.cell(Wait.WORKING):
                    segment = await self._collect(cell, ticket)
            self._admission.collected(ticket)
            self._segments.put_nowait(segment)

    @contextlib.asynccontextmanager
    async def _devices(self) -> AsyncIterator[None]:
        """A lease of the rollout phase; the wait for it is charged to the stage."""
        async with contextlib.AsyncExitStack() as held:
            with self._clock.cell(Wait.DEVICES):
                await held.enter_async_context(self._leases.hold("rollout"))
            yield

    async def _admitted(self, cell: Cell) -> Ticket | None:
        """The cell's next ticket; None when it has collected everything."""
        ledger = self._admission.ledger
        while (ticket := self._admission.admit(cell.number)) is None:
            if ledger.blocked_by(cell.number) == "finished":
                return None
            await self._admission.changed()
        return ticket

    async def _collect(self, cell: Cell, ticket: Ticket) -> Segment:
        host = self._crew.host(self._crew.placement.rollout_host(cell.number))
        row = self._pool.take()
        self._rows_of.setdefault(ticket.batch, []).append(row)
        placement = self._crew.placement
        central = placement.policy == "central" and placement.mode != "serial"
        arguments = {
            "cell": cell.number,
            "batch": ticket.batch,
            "version": ticket.version,
            "row": row,
        }
        with self._run.recorder.span("rollout", items=self.horizon * cell.slots):
            if central:
                summary = await self._collect_central(cell, host, arguments)
            else:
                summary = await self._timed_call(host, "rollout", "collect", arguments)
        episodes = tuple(Episode(**episode) for episode in summary["episodes"])
        self._check_lag(ticket, summary["oldest_version"])
        return Segment(
            cell=cell.number,
            batch=ticket.batch,
            row=row,
            first_slot=cell.first_slot,
            slots=cell.slots,
            horizon=self.horizon,
            oldest_version=summary["oldest_version"],
            newest_version=summary["newest_version"],
            env_steps=summary["env_steps"],
            episodes=episodes,
        )

    async def _collect_central(self, cell: Cell, policy: Host, arguments: dict[str, Any]) -> Any:
        render = self._crew.host(self._crew.placement.render_host(cell.number))
        try:
            return await self._timed_call(
                policy,
                "rollout",
                "collect_central",
                arguments,
                margin_s=CENTRAL_MARGIN_S,
                progress_s=render.progress_s,
            )
        except (PeerTimeout, PeerGone) as error:
            # The policy's host only waits: what hangs or is gone are the environments.
            raise await render.explain(error) from None

    def _check_lag(self, ticket: Ticket, oldest_version: int) -> None:
        if ticket.batch - oldest_version > self._admission.ledger.max_lag:
            raise EngineError(
                f"cell {ticket.cell} acted in batch {ticket.batch} with version {oldest_version}, "
                f"older than max_lag={self._admission.ledger.max_lag} allows"
            )

    async def _timed_call(
        self,
        host: Host,
        worker: str,
        method: str,
        arguments: dict[str, Any],
        *,
        margin_s: float = 0.0,
        progress_s: Callable[[], float] | None = None,
    ) -> Any:
        began_s = time.monotonic()
        limit_s = self._reply_s(method) + margin_s
        value = await host.call(
            worker, method, arguments, deadline_s=limit_s, progress_s=progress_s
        )
        took_s = time.monotonic() - began_s
        self._slowest_s[method] = max(took_s, self._slowest_s.get(method, 0.0))
        return value

    def _reply_s(self, method: str) -> float:
        """The deadline of a call: the option, or a multiple of the slowest such call so far."""
        measured_s = DEADLINE_OVER_SLOWEST * self._slowest_s.get(method, 0.0)
        return max(self._run.options.reply_timeout_s, measured_s)

    def _manifest(self) -> dict[str, Any]:
        return {
            "version": self._admission.ledger.newest,
            "env": self.envs.name,
            "env_request": self.envs.env,
            "script": None if self._run.script is None else str(self._run.script),
            "env_steps": self._run.progress.status().env_steps,
            "config": self._run.config,
            "seed": self._run.options.seed,
        }

    def policy_document(self) -> dict[str, Any]:
        """How to build the policy again: `policy.json` of a checkpoint."""
        return {
            "policy": self._policy.factory,
            "spaces": self.envs.spaces.to_json(),
            "normalize_observations": self._policy.normalize_observations,
        }


class CellsClock:
    """The rollout stage's clock over many cells: it waits only while no cell is at work."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._counts = {Wait.WORKING: 0, Wait.DEVICES: 0}
        self._now = contextlib.ExitStack()
        self._show()

    @contextlib.contextmanager
    def cell(self, state: Wait) -> Iterator[None]:
        """One cell is in `state` (working, or waiting for devices) inside the block."""
        self._counts[state] += 1
        self._show()
        try:
            yield
        finally:
            self._counts[state] -= 1
            self._show()

    def _show(self) -> None:
        self._now.close()
        if self._counts[Wait.WORKING]:
            return
        waits = Wait.DEVICES if self._counts[Wait.DEVICES] else Wait.WEIGHTS
        on = "train" if waits is Wait.DEVICES else "publish"
        self._now.enter_context(self._clock.waiting(waits, on=on))
