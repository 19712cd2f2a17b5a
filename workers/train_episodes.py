"""The train worker of `episodes` mode: learns from groups of whole episodes.

Axes: N entries of the batch's episodes, one episode after the other in work-list order; S episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlinf_async.algorithms.group_learner import make_group_learner
from rlinf_async.algorithms.normalizers import Moments, is_normalized_dtype
from rlinf_async.execution.records import Batch, Episode, Segment
from rlinf_async.execution.references import rebuild
from rlinf_async.scheduling.work_list import Episodes, kept_groups, tied
from rlinf_async.workers.train import TrainWorker

Fields = dict[str, np.ndarray]


class EpisodeTrainWorker(TrainWorker):
    """Trains on the groups of a batch that are kept; see `TrainWorker`."""

    def configure(  # type: ignore[override]
        self,
        loss: Any,
        advantages: Any,
        optimizer: Any,
        epochs: int,
        minibatch: int,
        shards: int,
        episodes: dict[str, Any],
    ) -> dict[str, str]:
        """Make the learner; returns its name and why it was chosen."""
        self._plan = Episodes(**episodes)
        self._learner = make_group_learner(
            self._policy,
            loss=rebuild(loss, where="pipe.train(loss)"),
            advantages=rebuild(advantages, where="pipe.train(advantages)"),
            optimizer=rebuild(optimizer, where="pipe.train(optimizer)"),
            episodes=self._plan,
            epochs=epochs,
            minibatch=minibatch,
            normalize=self._normalize,
            iterations=self._iterations,
            max_lag=self._max_lag,
            lag=self._lag,
            shards=shards,
        )
        self._learner.load(self._initial)
        return {"name": self._learner.name, "reason": self._learner.reason}

    def train(self, batch: Batch, row: int) -> dict[str, float]:
        """One iteration on `batch`; version n + 1 is written into weights row `row`."""
        metrics = super().train(batch, row)
        scores = scores_of(batch, self._plan.size)
        kept = kept_groups(scores, self._plan)
        return {
            **metrics,
            "groups_tried": float(len(scores)),
            "groups_tied": float(sum(tied(each) for each in scores.values())),
            "groups_kept": float(len(kept)),
        }

    def _gather(self, batch: Batch) -> Mapping[str, np.ndarray]:
        """The entries of the kept groups' episodes, in work-list order.

        As in a row, but [N, ...]; also `episode` [N], which one an entry is of, and of the episodes
        `score`, `group` and `number` [S], and `final/<name>` [S, *shape].
        """
        kept = set(kept_groups(scores_of(batch, self._plan.size), self._plan))
        size = self._plan.size
        ended = {e.number: e for e in batch.episodes if e.number // size in kept}
        parts = [entries_of(segment, ended) for segment in batch.segments]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(joined["item"], kind="stable")
        entries = {name: rows[order] for name, rows in joined.items()}
        return entries | self._episodes_of(entries, ended)

    def _episodes_of(self, entries: Fields, ended: Mapping[int, Episode]) -> Fields:
        """What there is once for each episode; last observations lie with the last entries."""
        numbers, first, episode = np.unique(entries["item"], return_index=True, return_inverse=True)
        last = np.append(first[1:], len(entries["item"])) - 1
        found = {
            "episode": episode.astype(np.int64),
            "number": numbers,
            "group": numbers // self._plan.size,
            "score": np.array([ended[n].episode_return for n in numbers.tolist()], np.float64),
        }
        finals = [name for name in entries if name.startswith("final/")]
        return found | {name: entries[name][last if len(numbers) else []] for name in finals}

    def _merge(self, fields: Mapping[str, np.ndarray], cells: list[int], *, fresh: bool) -> None:
        """Every observation once: before each step, and the last one of each episode."""
        if not self._normalize or not len(fields["number"]):
            return
        observations = dict(self._statistics.observations)
        for name, moments in observations.items():
            seen = fields[f"obs/{name}"]
            if is_normalized_dtype(seen.dtype):
                moments = moments.merged(Moments.of(seen))
                observations[name] = moments.merged(Moments.of(fields[f"final/{name}"]))
        self._statistics = dataclasses.replace(self._statistics, observations=observations)


def scores_of(batch: Batch, size: int) -> dict[int, list[float]]:
    """The scores of each group of which any episode ended, members in order."""
    scores: dict[int, list[float]] = {}
    for episode in sorted(batch.episodes, key=lambda episode: episode.number):
        scores.setdefault(episode.number // size, []).append(episode.episode_return)
    return scores


def entries_of(segment: Segment, ended: Mapping[int, Episode]) -> Fields:
    """The entries of the episodes `ended` in one row, [M, ...], as they lie in time."""
    row = segment.arrays
    assert row is not None, "a batch without views of its rows"
    item_TB = row["item"][: segment.horizon]
    t, slot = np.nonzero(np.isin(item_TB, list(ended)))
    entries = {
        name: view[: segment.horizon][t, slot]
        for name, view in row.items()
        if name not in ("version", "value", "final_value")
    }
    return entries | {"version": row["version"][t]}
