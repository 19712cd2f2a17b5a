"""Which entries of a replay are sampled: uniform, prioritised, mixed with demonstrations.

Axes: N samples, M of them from demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.off_policy.store import Store
from rlinf_async.algorithms.off_policy.sum_tree import SumTree

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

PRIORITY_FLOOR = 1e-6
"""Added to every temporal-difference error, so that no entry is forgotten."""


@dataclass(frozen=True, slots=True)
class Sample:
    """N transitions and where they came from."""

    rows: Mapping[str, Array]
    """As `Store.transitions`, and `weight` [N] float32: 1 where sampling is uniform."""
    index: Int64
    """Flat indices of the entries of the online store, first in `rows`; those of demonstrations
    follow."""


class UniformSampler:
    """Every entry equally often."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def inserted(self, index: Int64) -> None:
        """Entries at flat indices were written; nothing to do."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Int64, Float64]:
        """Flat indices [N] and their weights."""
        return self.store.draw(count, rng), np.ones(count)

    def learn(self, index: Int64, error: Array) -> None:
        """Temporal-difference errors of entries; nothing to do."""

    def state(self) -> dict[str, Array]:
        """Nothing is remembered."""
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Nothing was remembered."""


class PrioritisedSampler:
    """Entries in proportion to (|error| + floor)^alpha (Schaul et al., 2016, section 3.3).

    New entries have the largest priority so far, so that each is seen soon. One entry is drawn from
    each of N equal shares of the total. Weights are (count * probability)^-beta over the largest
    of the sample.
    """

    def __init__(self, store: Store, *, alpha: float, beta: float) -> None:
        self.store, self._alpha, self._beta = store, alpha, beta
        self.tree = SumTree(store.slots * store.length)
        self._largest = 1.0
        self._valid_count = 0

    def inserted(self, index: Int64) -> None:
        """Entries at flat indices were written."""
        index = np.unique(index)
        before = np.count_nonzero(self.tree.of(index))
        valid = self.store.valid_at(index)
        self.tree.put(index, np.where(valid, self._largest, 0.0))
        self._valid_count += int(valid.sum()) - int(before)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Int64, Float64]:
        """Flat indices [N] and their weights."""
        total = self.tree.total
        index = self.tree.find((np.arange(count) + rng.random(count)) * (total / count))
        chance = self.tree.of(index) / total
        weight = (self._valid_count * chance) ** -self._beta
        return index, weight / weight.max()

    def learn(self, index: Int64, error: Array) -> None:
        """Temporal-difference errors [N] of the entries that were drawn."""
        priority = (np.abs(error).astype(np.float64) + PRIORITY_FLOOR) ** self._alpha
        self._largest = max(self._largest, float(priority.max()))
        self.tree.put(index, priority)

    def state(self) -> dict[str, Array]:
        """All priorities, to be saved."""
        return {
            "priorities": self.tree.leaves_view().copy(),
            "largest": np.array([self._largest]),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        self.tree.put(np.arange(self.tree.leaves), state["priorities"])
        self._largest = float(state["largest"][0])
        self._valid_count = int(np.count_nonzero(state["priorities"]))


class Memory:
    """The online store with its sampler, and demonstrations that fill a share of each sample."""

    def __init__(
        self,
        sampler: UniformSampler | PrioritisedSampler,
        *,
        demonstrations: Store | None = None,
        share: float = 0.5,
        online: bool = True,
    ) -> None:
        """`share` of each sample comes from `demonstrations`; all of it where not `online`."""
        self.sampler, self.store = sampler, sampler.store
        self._demonstrations, self._share, self.online = demonstrations, share, online

    def insert(self, batch: Mapping[str, Array]) -> None:
        """Append a batch's steps; without `online` they are only looked at by the metrics."""
        if self.online:
            self.sampler.inserted(self.store.insert(batch))

    def __len__(self) -> int:
        return len(self.store) if self.online or self._demonstrations is None else 0

    @property
    def learns_from_errors(self) -> bool:
        """Whether errors change what is drawn next, so that samples cannot be taken ahead."""
        return isinstance(self.sampler, PrioritisedSampler)

    def sample(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        steps: int,
        gamma: float,
        minibatches: int = 1,
    ) -> Sample:
        """N = `count` n-step transitions, as so many minibatches one behind the other.

        Of each minibatch the online ones come first, then the demonstrations.
        """
        size = count // minibatches
        shown = 0
        if self._demonstrations is not None:
            shown = round(size * self._share) if self.online else size
        own = size - shown
        parts: list[dict[str, Array]] = []
        index = np.empty(0, np.int64)
        weight = np.ones(count, np.float32)
        if own:
            index, drawn = self.sampler.draw(own * minibatches, rng)
            weight.reshape(minibatches, size)[:, :own] = drawn.reshape(minibatches, own)
            parts.append(self.store.transitions(index, steps=steps, gamma=gamma))
        if shown:
            assert self._demonstrations is not None
            found = self._demonstrations.draw(shown * minibatches, rng)
            parts.append(self._demonstrations.transitions(found, steps=steps, gamma=gamma))
        rows = parts[0] if len(parts) == 1 else _interleaved(parts, minibatches)
        rows["weight"] = weight
        return Sample(rows, index)

    def learn(self, sample: Sample, error: Array) -> None:
        """Temporal-difference errors [N] of a sample."""
        if len(sample.index):
            self.sampler.learn(sample.index, error[: len(sample.index)])

    def save(self, path: Path) -> None:
        """Write the online store, and priorities where there are any, beside each other."""
        self.store.save(path)
        state = self.sampler.state()
        if state:
            with open(_beside(path), "wb") as file:
                np.savez(file, **state)  # type: ignore[arg-type]

    def restore(self, path: Path) -> None:
        """The inverse of `save`."""
        self.store.restore(path)
        if _beside(path).exists():
            with np.load(_beside(path)) as found:
                self.sampler.restore(dict(found))


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.priorities.npz")


def _interleaved(parts: list[dict[str, Array]], minibatches: int) -> dict[str, Array]:
    """For each minibatch its share of every part, one behind the other."""
    together: Callable[..., Array] = np.concatenate
    rows = {}
    for name, first in parts[0].items():
        cut = [part[name].reshape(minibatches, -1, *first.shape[1:]) for part in parts]
        rows[name] = together(cut, axis=1).reshape(-1, *first.shape[1:])
    return rows
