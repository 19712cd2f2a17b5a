"""`pipe.update`: training from replay, in the place of `pipe.train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rlinf_async.errors import BadInput
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.records import Batch, TrainReport
from rlinf_async.execution.references import describe

if TYPE_CHECKING:
    from rlinf_async.execution.pipeline import Pipeline

log = get_logger()


class OffPolicyUpdates:
    """The part of a pipeline that trains from replay."""

    async def update(
        self,
        batch: Batch,
        *,
        algorithm: Any,
        replay: Any,
        optimizer: Any,
        updates: int,
        minibatch: int = 256,
        warmup: int = 0,
    ) -> TrainReport:
        """Store `batch` in the replay, then make `updates` gradient updates on samples of it.

        Block n of updates samples from exactly the batches 0 to n. Until `warmup` steps are stored
        nothing is updated, and actions are drawn uniformly. `max_lag` bounds the version that
        acts, not the age of what is replayed.

        Waits for, unblocked by: as `train`.

        Args:
            algorithm: `SAC(...)`, `CrossQ(...)`, `TD3(...)` or `IQL(...)`.
            replay: a `Replay(...)`; its memory is made at the first batch, and refused where it
                does not fit.
            updates: of the critics, after each batch; over the batch's steps it is the
                update-to-data ratio.
            minibatch: transitions in one update.
            warmup: steps.

        Raises:
            BadInput: settings that do not fit each other, or that changed between iterations.
        """
        pipe = cast("Pipeline", self)
        collection = pipe._opened("pipe.update")
        pipe._check_published(f"batch {batch.index} came to update")
        sizes = {"updates": updates, "minibatch": minibatch, "warmup": warmup}
        for name, value in sizes.items():
            if value < (0 if name == "warmup" else 1):
                raise BadInput("pipe.update", name, expected="at least 1", got=value)
        records = {"algorithm": algorithm, "replay": replay, "optimizer": optimizer}
        described = {k: describe(v, where=f"pipe.update({k})") for k, v in records.items()}
        settings = {**described, **sizes}
        if pipe._learning is None:
            pipe._learning = settings
            log.info("learner_chosen", **await collection.configure_off_policy(settings))
        elif settings != pipe._learning:
            changed = [key for key, value in settings.items() if value != pipe._learning.get(key)]
            raise BadInput("pipe.update", f"{', '.join(changed)} changed after the first batch")
        report = await collection.train(batch, pipe._train_clock)
        pipe._trained_unpublished = report.version
        return report
