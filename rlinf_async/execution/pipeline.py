"""`Pipeline`: the logical order of the work, as streams that the script connects.

The script says `rollout`, `pack`, `train`, `publish`; where each runs is the placement's business.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rlinf_async.errors import BadInput, EngineError
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.arranger import Arranger
from rlinf_async.execution.collection import Collection
from rlinf_async.execution.crew import Crew
from rlinf_async.execution.definitions import Envs, Policy
from rlinf_async.execution.episodes import EpisodeCollection, extent_of
from rlinf_async.execution.evaluation import TrainingEvaluation, plan_of
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.off_policy import OffPolicyUpdates
from rlinf_async.execution.placing import placed
from rlinf_async.execution.records import Batch, Segment, TrainReport
from rlinf_async.execution.references import describe
from rlinf_async.execution.scores import EvaluationReport
from rlinf_async.execution.stages import Stage, pack_batches, run_stage
from rlinf_async.execution.stream import Stream
from rlinf_async.scheduling.ledger import Ledger
from rlinf_async.scheduling.placement import Placement
from rlinf_async.scheduling.work_list import Episodes

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run

log = get_logger()


class Pipeline(OffPolicyUpdates):
    """Streams between stages, and the one finite loop that trains.

    `async with run.pipeline(iterations=...) as pipe:` opens it; leaving the block ends every
    worker. A failure of any stage or worker cancels the block and is raised from it.
    """

    def __init__(
        self, run: Run, *, iterations: int, max_lag: int, placement: Placement | str | None
    ) -> None:
        self.iterations, self.max_lag = iterations, max_lag
        self._run, self._placement = run, placement
        self._group = asyncio.TaskGroup()
        self._endless: list[asyncio.Task[None]] = []
        self._streams = run.watched.streams
        self._crew: Crew | None = None
        self._collection: Collection | None = None
        self._evaluation: TrainingEvaluation | None = None
        self._learning: dict[str, Any] | None = None
        self._trained_unpublished: int | None = None
        self._published = 0
        self._train_clock = run.recorder.stage("train")
        self._pack_clock = run.recorder.stage("pack")

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        late: BaseException | None = None
        if error is None:
            try:
                await self._finish()
            except BaseException as failure:
                kind, error, trace = type(failure), failure, failure.__traceback__
                late = failure
        for task in self._endless:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            if self._crew is not None:
                await self._crew.close()
        if late is not None:
            raise late

    def rollout(
        self,
        policy: Policy,
        envs: Envs,
        *,
        horizon: int | None = None,
        episodes: Episodes | None = None,
    ) -> Stream[Segment]:
        """A stream of segments: each cell's environments over `horizon` steps under `policy`.

        With `episodes` a segment is a cell's part of a list of whole episodes in groups, and
        `pipe.train` takes what compares them: `GroupLoss`, `group_relative(...)`.

        Waits for:    a version that the next batch may act with (weights), devices.
        Unblocked by: `publish`.
        Ends when:    every cell has collected all batches.
        """
        if self._collection is not None:
            raise BadInput("pipe.rollout", "there is a rollout stage already", expected="one")
        extent = extent_of(horizon, episodes)
        placement, choices = placed(self._run, envs, self._placement, self.max_lag)
        for line in placement.describe():
            log.info("placement", line=line)
        ledger = Ledger(
            cells=len(envs.cells),
            iterations=self.iterations,
            max_lag=self.max_lag,
            lag=self._run.options.lag,
        )
        self._crew = Crew(self._run, placement, envs)
        segments: Stream[Segment] = Stream(
            "segments", capacity=(self.max_lag + 1) * len(envs.cells), reader=self._pack_clock
        )
        self._streams.append(segments)
        arranger = Arranger(
            self._crew,
            self._run.folder.path / "plans.jsonl",
            choices,
            only_plan=self._run.planning,
        )
        kind = Collection if isinstance(extent, int) else EpisodeCollection
        self._collection = kind(
            self._run, arranger, Admission(ledger), policy, envs, extent, segments
        )
        self._crew.check_memory(self._collection.segment_fields(), self._collection.rows)
        self._start("collection", self._collection.run())
        return segments

    def pack(self, segments: Stream[Segment], *, env_steps: int | None = None) -> Stream[Batch]:
        """Batches of `env_steps` steps, each the segments of all cells in cell order.

        With chunks a step is a chunk, which is up to C simulator steps. Batches of whole episodes
        have no fixed number of steps: leave `env_steps` out.

        Waits for:    the segments of the next batch (input).
        Unblocked by: `rollout`.
        Ends when:    the last batch is complete.
        """
        collection = self._opened("pipe.pack")
        count, horizon = collection.envs.count, collection.horizon
        if isinstance(collection, EpisodeCollection):
            if env_steps is not None:
                raise BadInput("pipe.pack", "a batch of whole episodes has no fixed env_steps")
        elif env_steps != count * horizon:
            env_steps = env_steps or 0
            nearest = max(1, round(env_steps / count))
            raise BadInput(
                "pipe.pack",
                "a batch is one segment of every cell",
                expected=f"env_steps = environments x horizon = {count} x {horizon} = "
                f"{count * horizon}",
                got=env_steps,
                fix=f"use env_steps={count * horizon}, or horizon={nearest} for "
                f"{nearest * count} steps",
            )
        batches: Stream[Batch] = Stream(
            "batches",
            capacity=self.max_lag + 1,
            writer=self._pack_clock,
            reader=self._train_clock,
        )
        # A batch asked for too early needs a version that only whoever asks could publish.
        batches.guard = partial(self._check_published, "the next batch was asked for")
        self._streams.append(batches)
        cells = len(collection.envs.cells)
        self._start("pack", pack_batches(segments, batches, cells, self.iterations))
        return batches

    def stage(
        self, stage: Stage, items: Stream[Any], *, capacity: int | None = None
    ) -> Stream[Any]:
        """The user's own stage: `async def stage(items) -> AsyncIterator`, as a stream.

        Waits for:    its items (input), space behind it (space).
        Ends when:    `items` ends and the stage has yielded all that it wants to.
        """
        name = getattr(stage, "__name__", "stage")
        clock = self._run.recorder.stage(name)
        items.reader = clock
        out: Stream[Any] = Stream(
            name, capacity=capacity or items.capacity, writer=clock, reader=self._train_clock
        )
        out.guard = items.guard
        items.guard = partial(self._check_yielded, name, items, out)
        self._streams.append(out)
        self._start(name, run_stage(stage, items, out))
        return out

    async def train(
        self,
        batch: Batch,
        *,
        loss: Any,
        advantages: Any,
        optimizer: Any,
        epochs: int = 1,
        minibatch: int | None = None,
        shards: int = 1,
    ) -> TrainReport:
        """One iteration on `batch`: `epochs` passes in minibatches of `minibatch` entries.

        A minibatch's gradient is computed in `shards` parts that are added in order; their number
        is part of what a seed reproduces.

        Waits for:    a free weights row (weights), devices.
        Unblocked by: rollouts no longer needing an old version; the phase that holds the devices.

        Raises:
            BadInput: settings that do not fit each other, or that changed between iterations.
        """
        collection = self._opened("pipe.train")
        self._check_published(f"batch {batch.index} came to train")
        minibatch = minibatch or batch.entries
        sizes = {"epochs": epochs, "minibatch": minibatch, "shards": shards}
        _check_sizes(batch, **sizes)
        await self._configure(
            {"loss": loss, "advantages": advantages, "optimizer": optimizer}, sizes
        )
        report = await collection.train(batch, self._train_clock)
        self._trained_unpublished = report.version
        return report

    async def publish(self) -> int:
        """Make the version that the last `train` yielded live; returns it. Once per batch."""
        collection = self._opened("pipe.publish")
        if self._trained_unpublished is None:
            raise EngineError("publish() without a train() before it; once per batch")
        version, self._trained_unpublished = self._trained_unpublished, None
        await collection.publish(version)
        self._published = version
        return version

    async def evaluate(
        self,
        *,
        episodes: int = 10,
        envs: Envs | None = None,
        slots: int | None = None,
        **how: Any,
    ) -> EvaluationReport:
        """Score the live version on whole episodes: always the same ones, never trained on.

        It runs in a host of its own with its own environments and generators, and training stays
        the same bit by bit. Await it to pause training meanwhile, or give it a task of its own.

        Waits for:    the episodes; another evaluation under way.

        Args:
            envs: where to score, `run.envs(...)`; None: the environments that are trained in.
            slots: episodes at a time; does not change what they score.
            how: `sampled`, `merged`, `record`, `videos`: see `EvaluationPlan`.
        """
        collection = self._opened("pipe.evaluate")
        assert self._crew is not None
        if self._evaluation is None:
            self._evaluation = TrainingEvaluation(self._run, self._crew, collection)
        plan = plan_of("pipe.evaluate", episodes=episodes, seed=self._run.options.seed, **how)
        return await self._evaluation.score(envs or collection.envs, plan, slots)

    def pin(self, mode: str) -> None:
        """Arrange the hosts of a run of `--mode auto` as `mode`; `auto` lets it choose again.

        Raises:
            BadInput: these hosts cannot be arranged so; they are fixed where mode is not `auto`,
                or where `max_lag` is 0.
        """
        self._opened("pipe.pin").arranger.pin(mode)

    @property
    def arrangement(self) -> tuple[str, bool]:
        """The mode of the hosts at this moment, and whether no trial is under way or to come."""
        arranger = self._opened("pipe.arrangement").arranger
        return arranger.crew.placement.mode, arranger.settled

    def cpu_s(self) -> float:
        """CPU seconds of all hosts."""
        return 0.0 if self._crew is None else self._crew.cpu_s()

    def wait_shares(self) -> dict[str, float]:
        """`wait/<stage>/<kind>` -> share of the stage's wall time so far."""
        return {
            f"wait/{stage}/{kind}": share
            for stage, shares in self._stage_shares().items()
            for kind, share in shares.items()
            if share > 0.0
        }

    def live_status(self) -> dict[str, Any]:
        """Streams, stages and hosts for a `RunStatus`."""
        hosts = {} if self._crew is None else self._crew.doing()
        return {
            "streams": {s.name: (len(s), s.capacity) for s in self._streams},
            "stages": self._stage_shares(),
            "hosts": hosts,
            "plan": "" if self._collection is None else self._collection.arranger.describe(),
        }

    def _opened(self, who: str) -> Collection:
        if self._collection is None:
            raise BadInput(who, "there is no rollout stage yet", fix="call pipe.rollout first")
        return self._collection

    def _start(self, name: str, body: Any) -> None:
        self._endless.append(self._group.create_task(body, name=name))

    def _check_published(self, what: str) -> None:
        """EngineError if `what` happened between a train() and its publish()."""
        if self._trained_unpublished is not None:
            raise EngineError(
                f"{what} before publish() of version {self._trained_unpublished}; "
                "call publish() exactly once after each train()"
            )

    def _check_yielded(self, name: str, items: Stream[Any], out: Stream[Any]) -> None:
        """EngineError where stage `name` asks for an item that can never come.

        That is so once it has taken all that may be collected before the next publish, and nothing
        that it has yielded can lead to one.
        """
        per_batch = {"batches": 1, "segments": len(self._opened(name).envs.cells)}.get(items.name)
        last = self._streams[-1]
        if per_batch is None or items.closed or out.put_count >= items.got_count:
            return
        admitted = min(self._published + self.max_lag + 1, self.iterations) * per_batch
        if admitted > items.got_count or len(last) or last.got_count > self._published:
            return
        if self._published < self.iterations:
            raise EngineError(
                f"stage {name!r} took {items.got_count} items of {items.name!r} and yielded "
                f"{out.put_count}; no more can come before the next publish(): yield each one"
            )

    async def _configure(self, records: dict[str, Any], sizes: dict[str, int]) -> None:
        """Make the learner at the first batch; later ones must ask for the same."""
        described = {
            name: describe(value, where=f"pipe.train({name})") for name, value in records.items()
        }
        settings = {**described, **sizes}
        if settings == self._learning:
            return
        if self._learning is not None:
            changed = [key for key, value in settings.items() if value != self._learning[key]]
            raise BadInput(
                "pipe.train",
                f"{', '.join(changed)} changed after the first batch",
                fix="use a schedule for what must change",
            )
        self._learning = settings
        chosen = await self._opened("pipe.train").configure(settings)
        log.info("learner_chosen", **chosen)

    async def _finish(self) -> None:
        if self._collection is None:
            return
        if self._trained_unpublished is not None:
            raise EngineError(
                f"the pipeline ended without publish() of version {self._trained_unpublished}"
            )
        self._run.progress.phase = "closing"
        await self._collection.save()

    def _stage_shares(self) -> dict[str, dict[str, float]]:
        totals = dict(self._run.recorder.stage_totals())
        if self._crew is not None:
            totals.update(self._crew.stage_totals())
        return {
            stage: {kind: spent_s / (sum(kinds.values()) or 1.0) for kind, spent_s in kinds.items()}
            for stage, kinds in totals.items()
        }


def _check_sizes(batch: Batch, *, epochs: int, minibatch: int, shards: int) -> None:
    for name, value in (("epochs", epochs), ("shards", shards)):
        if value < 1:
            raise BadInput("pipe.train", name, expected="at least 1", got=value)
    if not 1 <= minibatch <= batch.entries:
        raise BadInput(
            "pipe.train",
            "minibatch",
            expected=f"1 to {batch.entries}, the steps of a batch",
            got=minibatch,
            fix=f"use minibatch={min(max(1, minibatch), batch.entries)}",
        )
