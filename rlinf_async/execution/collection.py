"""The rollout stage and the calls around it: cells collect, batches train, versions go live."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_async.communication.deadlines import deadline
from rlinf_async.communication.fields import Field
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import EngineError, PeerGone, PeerTimeout
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.arranger import Arranger
from rlinf_async.execution.building import WorkerBuilder
from rlinf_async.execution.cells_clock import CellsClock
from rlinf_async.execution.definitions import Envs, Policy
from rlinf_async.execution.followers import Followers
from rlinf_async.execution.hosts import Host
from rlinf_async.execution.layout import Cell, segment_fields
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.records import Batch, Episode, Segment, TrainReport, record_to_json
from rlinf_async.execution.roles import role_reference
from rlinf_async.execution.stream import Stream
from rlinf_async.execution.weights import WeightRing
from rlinf_async.scheduling.ledger import Ticket
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

    roles: Mapping[str, str] = {}
    """Roles that other workers play here than those that are registered by the same name."""

    def __init__(
        self,
        run: Run,
        arranger: Arranger,
        admission: Admission,
        policy: Policy,
        envs: Envs,
        horizon: int,
        segments: Stream[Segment],
    ) -> None:
        self.envs, self.horizon = envs, horizon
        self.arranger = arranger
        self._run, self._crew, self._admission = run, arranger.crew, admission
        self._policy, self._segments = policy, segments
        ledger = run.watched.ledger = admission.ledger
        self.rows = (ledger.max_lag + 1) * ledger.cells
        self._start_s = run.options.start_timeout_s
        self._leases = arranger.leases
        self._builder = WorkerBuilder(run, self._crew, policy, envs, ledger, self.roles)
        self._followers = Followers(self._crew, limit_s=self._start_s)
        self._clock = CellsClock(run.recorder.stage("rollout"))
        self._pool: RowPool
        self._ring: WeightRing
        self._weights: RowPool
        self._built = asyncio.Event()
        self._rows_of: dict[int, list[int]] = {}
        self._next_weights_row = -1
        self._gates: dict[str, asyncio.Semaphore] = {}
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
        self._run.watched.pool = self._pool
        await self._crew.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._crew.watch(), name="watch")
            await self._build()
            self.arranger.start(self.envs.count * self.horizon, self._admission.ledger)
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
        names = self.arranger.spread(settings["shards"])
        await self._followers.open(names, settings, self._builder.gradient_arguments())
        return chosen

    async def configure_off_policy(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Make replay and learner in the train host; the learner's name and reason, and sizes."""
        train = self._crew.host(self._crew.placement.train_host)
        arguments = {
            "spaces": self.envs.spaces.to_json(),
            "slots": self.envs.count,
            "replay": settings["replay"],
        }
        command = {
            "name": "replay",
            "reference": role_reference("replay"),
            "arguments": arguments,
        }
        await train.call("host", "create", command, deadline_s=self._start_s)
        described = await train.call("replay", "describe", {}, deadline_s=self._start_s)
        log.info("replay_allocated", **{k: v for k, v in described.items() if k != "pool"})
        own = {name: value for name, value in settings.items() if name != "replay"}
        chosen: dict[str, Any] = await train.call(
            "train", "configure_off_policy", own, deadline_s=self._start_s
        )
        return chosen

    async def train(self, batch: Batch, clock: StageClock) -> TrainReport:
        """Train on `batch` under a lease of the train phase; its version lies in a row then."""
        row = await self._ring.free_row(clock)
        train = self._crew.host(self._crew.placement.train_host)
        async with self._leases.hold("train", clock=clock):
            with self.arranger.training(), self._run.recorder.span("train", items=batch.env_steps):
                arguments = {"batch": record_to_json(batch), "row": row}
                metrics = await self._train(train, arguments)
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

    async def _train(self, train: Host, arguments: dict[str, Any]) -> dict[str, float]:
        """The metrics of one iteration, with everyone taking part who computes gradients."""
        metrics: dict[str, float]
        if not self._followers.count:
            metrics = await self._timed_call(train, "train", "train", arguments)
            return metrics
        limit_s = self._reply_s("train_spread")
        spread = {**arguments, "followers": self._followers.count, "limit_s": limit_s}
        leading = self._timed_call(train, "train", "train_spread", spread)
        metrics = await self._followers.led(leading, limit_s=limit_s)
        return metrics

    async def publish(self, version: int) -> None:
        """Make `version` live everywhere, then free the rows of the batch that it came from."""
        with self._run.recorder.span("publish"):
            await self._ring.publish(version, self._next_weights_row)
        # Freed only now: freeing earlier would let a segment start with a version not yet live.
        for row in self._rows_of.pop(version - 1):
            self._pool.give(row)
        self._admission.published(version)
        self.arranger.iteration_ended()

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
        """Create all workers, and make version 0 live."""
        self._weights = await self._builder.build(self._pool, self.horizon)
        receivers = [host for _, host in self._crew.with_role("rollout")]
        self._ring = WeightRing(self._weights, self._admission, receivers, self._reply_s("adopt"))
        row = self._ring.first_row()
        train = self._crew.host(self._crew.placement.train_host)
        await train.call("train", "initialise", {"row": row}, deadline_s=self._start_s)
        await self._ring.publish(0, row)
        self._built.set()

    async def _collect_cell(self, cell: Cell) -> None:
        gate = self._gate(cell)
        while (ticket := await self._admitted(cell)) is not None:
            async with gate, self._devices():
                with self._clock.cell(Wait.WORKING), self.arranger.times.running("collect"):
                    segment = await self._collect(cell, ticket)
            self._admission.collected(ticket)
            self._segments.put_nowait(segment)

    def _gate(self, cell: Cell) -> asyncio.Semaphore:
        """Open for as many cells of the render host of `cell` as may be under way at once."""
        placement = self._crew.placement
        host = placement.render_host(cell.number)
        depth = placement.depth or len(host.cells)
        return self._gates.setdefault(host.name, asyncio.Semaphore(depth))

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

    async def _collect_central(
        self,
        cell: Cell,
        policy: Host,
        arguments: dict[str, Any],
        method: str = "collect_central",
    ) -> Any:
        render = self._crew.host(self._crew.placement.render_host(cell.number))
        try:
            return await self._timed_call(
                policy,
                "rollout",
                method,
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
