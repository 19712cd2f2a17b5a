"""The torch learner for groups of whole episodes: GRPO, Dr.GRPO, RLOO, DAPO and REINFORCE++.

Axes: N entries, one episode after the other in work-list order; S episodes. Nothing here depends on
which cell ran an episode, in which slot, or when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import structlog
from torch import Tensor

from rlinf_async.algorithms.advantages import chunk_rewards, raw_returns
from rlinf_async.algorithms.group_records import (
    GroupAdvantages,
    GroupRelative,
    ReinforcePP,
    check_group_training,
)
from rlinf_async.algorithms.groups import (
    group_advantages,
    overlong_penalty,
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from rlinf_async.algorithms.losses import GroupLoss
from rlinf_async.algorithms.losses_torch import group_loss
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.algorithms.reductions import reduction_weights
from rlinf_async.algorithms.reference import Reference
from rlinf_async.algorithms.torch_learner import Minibatch, TorchLearner
from rlinf_async.scheduling.work_list import Episodes

log = structlog.get_logger()

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def make_group_learner(
    policy: Any,
    *,
    loss: Any,
    advantages: Any,
    optimizer: Any,
    episodes: Episodes,
    epochs: int,
    minibatch: int,
    normalize: bool,
    iterations: int,
    max_lag: int,
    lag: Literal["exact", "free"],
    shards: int,
) -> GroupLearner:
    """The learner for a configuration; BadInput for one that cannot be right."""
    check_group_training(
        loss=loss,
        optimizer=optimizer,
        advantages=advantages,
        episodes=episodes,
        max_lag=max_lag,
        lag=lag,
    )
    learner = GroupLearner(
        policy,
        loss=loss,
        comparison=advantages,
        optimizer=optimizer,
        limit=episodes.limit,
        epochs=epochs,
        minibatch=minibatch,
        normalize=normalize,
        iterations=iterations,
        shards=shards,
    )
    learner.reason = "whole episodes are compared within their groups"
    return learner


class GroupLearner(TorchLearner):
    """Trains any torch policy on whole episodes; see `Learner` and the module."""

    def __init__(
        self,
        policy: Any,
        *,
        loss: GroupLoss,
        comparison: GroupAdvantages,
        optimizer: Adam,
        limit: int,
        normalize: bool,
        **sizes: int,
    ) -> None:
        super().__init__(
            policy,
            loss=loss,  # type: ignore[arg-type]
            optimizer=optimizer,
            advantages=raw_returns(gamma=1.0),
            normalize=normalize,
            **sizes,
        )
        self._group_record = self._group_loss = loss
        self._comparison, self._limit = comparison, limit
        if isinstance(comparison, ReinforcePP) and comparison.kl is not None:
            self._reference = Reference(comparison, normalize=normalize)

    def begin(self, progress: float) -> None:
        """Schedules stand where they are after this share of the run."""
        super().begin(progress)
        self._group_loss = self._group_record.at(progress)

    def update(
        self,
        batch: Mapping[str, Array],
        *,
        statistics: Statistics,
        scales: Mapping[int, float],
        version: int,
        seed: int,
    ) -> dict[str, float]:
        """One iteration on the episodes of `batch`; see `EpisodeTrainWorker` for its fields.

        Where every group ties the update is left out, and the version that follows is the same.
        """
        self.begin(version / self._iterations)
        entries = self._episode_entries(batch, statistics)
        if self._reference.wanted:
            seen = {n[4:]: rows for n, rows in entries.items() if n.startswith("obs/")}
            entries["logp_reference"] = self._reference.logp(
                self._evaluator, self.parameters, seen, entries["action"], entries.get("executed")
            )
        entries["advantage"] = self._advantages(batch, entries.get("logp_reference"))
        if not entries["advantage"].any():
            log.warning("update_skipped", version=version, why="every group tied")
            return {"skipped_update": 1.0}
        entries["reduction"] = reduction_weights(
            self._group_loss.reduction,
            np.ones(len(batch["logp"]), np.bool_),
            batch["episode"],
            length_limit=self._group_loss.length_limit,
        )
        metrics = self._run_epochs(entries, seed=seed, version=version)
        return {**metrics, "skipped_update": 0.0}

    def _episode_entries(
        self, batch: Mapping[str, Array], statistics: Statistics
    ) -> dict[str, Array]:
        raw = {name: batch[f"obs/{name}"] for name in statistics.observations}
        seen = self._prepare.normalize(raw, statistics)
        entries = {f"obs/{name}": rows for name, rows in seen.items()}
        names = ("action", "logp", "version", "episode", "executed")
        return entries | {name: batch[name] for name in names if name in batch}

    def _advantages(self, batch: Mapping[str, Array], logp_reference: Float32 | None) -> Float32:
        """Of each entry, [N]."""
        if not len(batch["number"]):
            return np.zeros(0, np.float32)
        score_S, group_S = batch["score"], batch["group"]
        comparison = self._comparison
        if isinstance(comparison, GroupRelative):
            if comparison.overlong_cushion is not None:
                length_S = np.bincount(batch["episode"])
                score_S = score_S + overlong_penalty(
                    length_S, limit=self._limit, cushion=comparison.overlong_cushion
                )
            found = group_advantages(score_S, group_S, baseline=comparison.baseline)
        elif comparison.group_baseline:
            found = reinforce_pp_baseline_advantages(score_S, group_S)
        else:
            return _reinforce_pp(comparison, batch, logp_reference)
        return found[batch["episode"]]

    def _parts(
        self, entries: dict[str, Array], seed: int, version: int
    ) -> Iterator[tuple[slice, Minibatch]]:
        """As `TorchLearner._parts`; weights grow by what a mini-batch is smaller than the batch.

        So the loss of each is an unbiased estimate of the whole batch's.
        """
        count = len(entries["logp"])
        for at, part in super()._parts(entries, seed, version):
            scale = count / len(part["logp"])
            yield at, {**part, "reduction": part["reduction"] * scale}

    def _loss_of(self, shard: Minibatch, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The shard's part of the loss; its weights know the whole step already."""
        logp, entropy, _ = self._evaluate(shard)
        return group_loss(
            self._group_loss,
            logp=logp,
            entropy=entropy,
            logp_base=shard["logp"],
            advantage=shard["advantage"],
            reduction=shard["reduction"],
            logp_reference=shard.get("logp_reference"),
        )


def _reinforce_pp(
    comparison: ReinforcePP, batch: Mapping[str, Array], logp_reference: Float32 | None
) -> Float32:
    """Of each entry, [N]; episodes lie side by side, [T, S], while returns are summed."""
    episode, count = batch["episode"], len(batch["number"])
    length_S = np.bincount(episode, minlength=count)
    at = np.arange(len(episode)) - np.repeat(np.cumsum(length_S) - length_S, length_S), episode
    reward = batch["reward"]
    if "executed" in batch:
        summed, _ = chunk_rewards(reward, batch["executed"], gamma=1.0, discount="chunk")
        reward = summed
    valid_TS = np.zeros((int(length_S.max()), count), np.bool_)
    valid_TS[at] = True
    boundary_TS = np.zeros_like(valid_TS)
    boundary_TS[length_S - 1, np.arange(count)] = True

    def placed(values: Array) -> Array:
        out = np.zeros(valid_TS.shape, values.dtype)
        out[at] = values
        return out

    old = placed(batch["logp"])
    found = reinforce_pp_advantages(
        placed(reward),
        valid_TS,
        boundary_TS,
        old,
        old if logp_reference is None else placed(logp_reference),
        gamma=comparison.gamma,
        kl_weight=comparison.kl_weight,
    )
    return found[at]
