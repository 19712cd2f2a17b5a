"""The train worker: holds parameters, statistics and optimizer; turns a batch into a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlinf_async.algorithms.learner import Learner, make_learner
from rlinf_async.algorithms.normalizers import ReturnScaler, Statistics, sub_steps
from rlinf_async.algorithms.spread import Spread
from rlinf_async.communication.lockstep import Leader
from rlinf_async.errors import BadInput
from rlinf_async.execution.checkpoint import read_checkpoint, write_checkpoint
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.records import Batch
from rlinf_async.execution.references import rebuild
from rlinf_async.execution.spaces import Spaces
from rlinf_async.execution.worker import Worker, WorkerContext
from rlinf_async.models.parameters import initial_parameters

log = get_logger()

INITIAL_STREAM = 2
"""Word of the seed sequence that initial weights are drawn with."""


class TrainWorker(Worker):
    """Trains one batch after another; batch n is trained by version n and yields version n + 1.

    Waits for:    a full batch (input), a free weights row (weights).
    Unblocked by: `pack` putting a batch; rollout workers no longer needing an old version.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        policy: Callable[[], Any],
        spaces: dict[str, Any],
        normalize: bool,
        run_seed: int,
        iterations: int,
        max_lag: int,
        lag: Literal["exact", "free"],
        init_from: str | None,
        dumps: str,
    ) -> None:
        """`dumps` is the folder for mini-batches that were not finite; made when needed."""
        super().__init__(context)
        self._spaces = Spaces.from_json(spaces)
        self._normalize, self._run_seed = normalize, run_seed
        self._iterations, self._max_lag, self._lag = iterations, max_lag, lag
        self._dumps = dumps
        self._policy, self._shapes, self._initial = initial_parameters(
            policy, seed=(run_seed, INITIAL_STREAM)
        )
        self._statistics = Statistics.initial(self._spaces)
        self._init_from = None if init_from is None else Path(init_from)
        if self._init_from is not None:
            self._start_from(self._init_from)
        self._learner: Learner | None = None
        self._scaler: ReturnScaler | None = None
        self._scales: dict[int, float] = {}
        self._gathered: dict[str, np.ndarray] = {}
        self._spread: Spread | None = None

    def describe(self) -> dict[str, Any]:
        """The fields of a weights row as `[name, shape, dtype]`."""
        fields = [["parameters", list(self._initial.shape), "float32"], ["version", [1], "int64"]]
        for name, values in self._statistics.fields().items():
            fields.append([name, list(values.shape), "float64"])
        return {"fields": fields, "parameters": int(self._initial.size)}

    def initialise(self, row: int) -> None:
        """Write version 0 into a weights row."""
        self._write(row, 0, self._initial)

    def configure(
        self,
        loss: Any,
        advantages: Any,
        optimizer: Any,
        epochs: int,
        minibatch: int,
        shards: int,
    ) -> dict[str, str]:
        """Make the learner; returns its name and why it was chosen."""
        settings = {
            "loss": loss,
            "advantages": advantages,
            "optimizer": optimizer,
            "epochs": epochs,
            "minibatch": minibatch,
            "shards": shards,
        }
        self._learner = learner_of(
            self._policy,
            self._spaces,
            settings=settings,
            normalize=self._normalize,
            iterations=self._iterations,
            max_lag=self._max_lag,
            lag=self._lag,
        )
        self._learner.load(self._initial)
        self._gamma = rebuild(advantages, where="pipe.train(advantages)").gamma
        return {"name": self._learner.name, "reason": self._learner.reason}

    def lead(self, address: str) -> bool:
        """Wait at `address` for workers that compute shards of the gradient.

        False, and nobody need come, where the learner's gradient does not come in shards.
        """
        # Only configurations that torch trains have shards, and `torch` takes long to import.
        from rlinf_async.algorithms.torch_learner import TorchLearner

        if not isinstance(self._learner, TorchLearner):
            return False
        shards, parameters = self._learner.shards, self._learner.parameters.size
        self._spread = Spread(Leader(address), shards=shards, parameters=parameters)
        self._learner.spread = self._spread
        return True

    def configure_off_policy(
        self,
        algorithm: Any,
        optimizer: Any,
        updates: int,
        minibatch: int,
        warmup: int,
    ) -> dict[str, str]:
        """Make a learner that learns from the replay of this host; its name and the reason."""
        from rlinf_async.algorithms.off_policy.configuring import make_off_policy_learner

        replay: Any = self.context.sibling("replay")
        record = rebuild(algorithm, where="pipe.update(algorithm)")
        self._learner = make_off_policy_learner(
            self._policy,
            algorithm=record,
            memory=replay.memory,
            optimizer=rebuild(optimizer, where="pipe.update(optimizer)"),
            updates=updates,
            minibatch=minibatch,
            warmup=warmup,
            n_step=replay.n_step,
            normalize=self._normalize,
            iterations=self._iterations,
            seed=self._run_seed,
        )
        self._learner.load(self._initial)
        if self._init_from is not None and replay.saved:
            found = replay.restore(self._init_from)
            log.info(
                "replay_restored" if found else "no_replay_in_checkpoint", steps=len(replay.memory)
            )
        self._gamma = record.gamma
        return {"name": self._learner.name, "reason": self._learner.reason}

    def train_spread(
        self, batch: Batch, row: int, followers: int, limit_s: float
    ) -> dict[str, float]:
        """`train`, with so many gradient workers taking part."""
        assert self._spread is not None, "train_spread before lead"
        self._spread.begin(followers, limit_s=limit_s)
        metrics = self.train(batch, row)
        self._spread.end()
        return metrics

    def train(self, batch: Batch, row: int) -> dict[str, float]:
        """One iteration on `batch`; version n + 1 is written into weights row `row`."""
        assert self._learner is not None, "train before configure"
        cells = [segment.slots for segment in batch.segments]
        with self.context.recorder.span("train.gather", items=batch.env_steps):
            for segment in batch.segments:
                self.context.recorder.flow("segment", segment.cell, segment.batch)
            fields = self._gather(batch)
        version = batch.index
        self._scales[version] = self._statistics.reward_scale
        with self.context.recorder.span("train.update", items=batch.env_steps):
            try:
                metrics = self._learner.update(
                    fields,
                    statistics=self._statistics,
                    scales=self._scales,
                    version=version,
                    seed=self._run_seed,
                )
            finally:
                self._dump_non_finite(version)
        with self.context.recorder.span("train.statistics", items=batch.env_steps):
            self._merge(fields, cells, fresh=version == 0)
            self._write(row, version + 1, self._learner.parameters)
        oldest_needed = version - self._max_lag
        self._scales = {v: s for v, s in self._scales.items() if v >= oldest_needed}
        return metrics

    def _dump_non_finite(self, version: int) -> None:
        """Write the first mini-batch whose loss or gradient was not finite, for a look at it."""
        assert self._learner is not None
        kept = self._learner.guard.take_minibatch()
        if kept is None:
            return
        folder = Path(self._dumps)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"non_finite_{version}.npz"
        arrays: dict[str, Any] = {name.replace("/", "."): rows for name, rows in kept.items()}
        np.savez(path, **arrays)
        log.warning("non_finite_step_skipped", version=version, minibatch=str(path))

    def save(self, folder: str, manifest: dict[str, Any], policy: dict[str, Any]) -> None:
        """Write a checkpoint of the newest version."""
        parameters = self._initial if self._learner is None else self._learner.parameters
        replay: Any = self.context.sibling("replay")
        optimizer = {} if self._learner is None else dict(self._learner.state())
        if self._scaler is not None:
            optimizer["return_scaler/running"] = self._scaler.running
        write_checkpoint(
            Path(folder),
            parameters=parameters,
            parameter_shapes=self._shapes,
            statistics=self._statistics.fields(),
            policy=policy,
            manifest=manifest,
            optimizer=optimizer,
            also=replay.save if replay is not None and replay.saved else None,
        )

    def close(self) -> None:
        """Let gradient workers go."""
        if self._spread is not None:
            self._spread.close()

    def _gather(self, batch: Batch) -> Mapping[str, np.ndarray]:
        """The fields of all segments side by side along the slot axis, in cell order."""
        parts = [segment.arrays for segment in batch.segments]
        first = parts[0]
        assert first is not None, "a batch without views of its rows"
        for name, view in first.items():
            if name == "version":
                columns = [
                    np.broadcast_to(part[name][:, None], part["logp"].shape)  # type: ignore[index]
                    for part in parts
                ]
            else:
                columns = [part[name] for part in parts]  # type: ignore[index]
            out = self._gathered.get(name)
            if out is None:
                self._gathered[name] = np.concatenate(columns, axis=1)
            else:
                np.concatenate(columns, axis=1, out=out)
            assert view.dtype == self._gathered[name].dtype
        return self._gathered

    def _merge(self, fields: Mapping[str, np.ndarray], cells: list[int], *, fresh: bool) -> None:
        boundary_TB = fields["terminated"] | fields["truncated"]
        if self._scaler is None:
            self._scaler = ReturnScaler(sum(cells), gamma=self._gamma)
        reward_TB, valid_TB = fields["reward"], None
        if "executed" in fields:
            reward_TB, boundary_TB, valid_TB = sub_steps(reward_TB, fields["executed"], boundary_TB)
        returns_TB = self._scaler.returns(reward_TB, boundary_TB, valid_TB)
        merged = self._statistics
        if self._normalize:
            merged = merged.merged(fields, cells=cells, fresh=fresh)
        self._statistics = merged.with_returns(returns_TB, cells=cells, valid_TB=valid_TB)

    def _write(self, row: int, version: int, parameters: np.ndarray) -> None:
        views = self.context.rows("weights", row)
        views["parameters"][...] = parameters
        views["version"][0] = version
        self._statistics.to_row(views)

    def _start_from(self, folder: Path) -> None:
        checkpoint = read_checkpoint(folder)
        if checkpoint.parameters.shape != self._initial.shape:
            raise BadInput(
                "--init-from",
                f"{folder} holds another policy",
                expected=f"{self._initial.size:,} parameters",
                got=f"{checkpoint.parameters.size:,}",
            )
        self._initial = checkpoint.parameters
        self._statistics = Statistics.from_row(checkpoint.statistics, self._spaces)


def learner_of(
    policy: Any,
    spaces: Spaces,
    *,
    settings: Mapping[str, Any],
    normalize: bool,
    iterations: int,
    max_lag: int,
    lag: Literal["exact", "free"],
) -> Learner:
    """The learner for the settings of `pipe.train`, whose records are still in words."""
    records = {
        name: rebuild(settings[name], where=f"pipe.train({name})")
        for name in ("loss", "advantages", "optimizer")
    }
    return make_learner(
        policy,
        spaces,
        **records,
        epochs=settings["epochs"],
        minibatch=settings["minibatch"],
        shards=settings["shards"],
        normalize=normalize,
        iterations=iterations,
        max_lag=max_lag,
        lag=lag,
    )
