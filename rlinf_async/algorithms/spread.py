"""Shards of one gradient, computed in several processes and added in the order of the shards.

The leader holds parameters, optimizer and batch. Its mini-batches, its parameters and the gradient
of every shard lie in shared memory; followers hold nothing that a step does not give them, so that
any number of them, none included, yields the same bits. P parameters, S shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.communication.fields import Field
from rlinf_async.communication.lockstep import Follower, Leader
from rlinf_async.communication.pool import PoolDescriptor, RowPool
from rlinf_async.errors import EngineError

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

MOST_METRICS = 64
"""Numbers that a loss may report of a shard."""
LEAST_LIMIT_S, LIMIT_OVER_SLOWEST = 60.0, 20.0
"""A follower may take so long for a step, or so many times the slowest one so far."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of one shard."""

    gradient: Float32
    """[P], a view of shared memory that the next step overwrites."""
    metrics: Mapping[str, float]
    finite: bool


def shards_of(participant: int, participants: int, shards: int) -> range:
    """The shards of one participant, the leader being 0: contiguous, as even as they go."""
    return range(
        -(-participant * shards // participants), -(-(participant + 1) * shards // participants)
    )


class Spread:
    """The leader's side: hands out steps and collects what followers made of them."""

    def __init__(self, leader: Leader, *, shards: int, parameters: int) -> None:
        self._leader, self._shards = leader, shards
        self.followers = 0
        """How many take part in the next steps."""
        fields = [
            Field(name="gradient", shape=(parameters,), dtype="float32"),
            Field(name="metrics", shape=(MOST_METRICS,), dtype="float64"),
            Field(name="finite", shape=(1,), dtype="bool"),
        ]
        whole = Field(name="parameters", shape=(parameters,), dtype="float32")
        self._pools = {
            "gradients": RowPool.create("gradients", fields, shards),
            "parameters": RowPool.create("parameters", [whole], 1),
        }
        self._told: dict[int, set[str]] = {}
        self._slowest_s = 0.0
        self._asked_s = 0.0

    def buffers(self, entries: Mapping[str, Array]) -> dict[str, Array]:
        """Room for a shuffled epoch of `entries`, in memory that followers see too."""
        fields = [
            Field(name=n, shape=rows.shape, dtype=rows.dtype.name) for n, rows in entries.items()
        ]
        if (before := self._pools.pop("entries", None)) is not None:
            before.close()
        self._pools["entries"] = RowPool.create("entries", fields, 1)
        return dict(self._pools["entries"].row(0))

    def begin(self, followers: int, *, limit_s: float) -> None:
        """The next steps are taken with so many followers, whom the leader waits for."""
        self._leader.gather(followers, limit_s=limit_s)
        self.followers = followers

    def ask(self, at: slice, *, progress: float, parameters: Float32) -> None:
        """Let followers compute their shards of the mini-batch `at` of the buffers."""
        np.copyto(self._pools["parameters"].row(0)["parameters"], parameters)
        tokens = {pool.descriptor.token for pool in self._pools.values()}
        message: dict[str, Any] = {
            "at": [at.start, at.stop],
            "progress": progress,
            "participants": self.followers + 1,
        }
        asked = range(1, self.followers + 1)
        if any(self._told.get(number) != tokens for number in asked):
            pools = {name: pool.descriptor.to_json() for name, pool in self._pools.items()}
            message["descriptors"] = pools
            self._told.update({number: tokens for number in asked})
        self._leader.tell(message, count=self.followers)
        self._asked_s = time.monotonic()

    def answers(self, shards: int) -> Iterator[ShardResult]:
        """The results of the followers' shards, in the order of the shards."""
        limit_s = max(LEAST_LIMIT_S, LIMIT_OVER_SLOWEST * self._slowest_s)
        heard = self._leader.hear(count=self.followers, limit_s=limit_s)
        self._slowest_s = max(self._slowest_s, time.monotonic() - self._asked_s)
        for number, answer in enumerate(heard, 1):
            if "failed" in answer:
                raise EngineError(f"follower {number} gave up: {answer['failed']}")
            for shard in shards_of(number, self.followers + 1, shards):
                row = self._pools["gradients"].row(shard)
                metrics = dict(zip(answer["metrics"], row["metrics"].tolist(), strict=False))
                yield ShardResult(row["gradient"], metrics, bool(row["finite"][0]))

    def end(self) -> None:
        """Let the followers go until the next `begin`."""
        self._leader.tell({"end": True}, count=self.followers)
        self.followers = 0

    def close(self) -> None:
        """Let go of followers and memory."""
        self._leader.close()
        for pool in self._pools.values():
            pool.close()


class Followed:
    """A follower's side: what the leader asks, with views of its memory."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._pools: dict[str, RowPool] = {}
        self.asked: dict[str, Any] = {}
        """The leader's last message."""

    def next(self, *, limit_s: float) -> bool:
        """Wait for the next step; False when the leader has ended this round of steps."""
        message = self._follower.hear(limit_s=limit_s)
        if "end" in message:
            return False
        for name, descriptor in message.get("descriptors", {}).items():
            known = self._pools.get(name)
            if known is None or known.descriptor.token != descriptor["token"]:
                if known is not None:
                    known.close()
                self._pools[name] = RowPool.attach(PoolDescriptor.from_json(descriptor))
        self.asked = message
        return True

    @property
    def parameters(self) -> Float32:
        """[P], the leader's before this step."""
        return self._pools["parameters"].row(0)["parameters"]

    def minibatch(self) -> dict[str, Array]:
        """The entries of this step's mini-batch by name."""
        start, stop = self.asked["at"]
        return {name: rows[start:stop] for name, rows in self._pools["entries"].row(0).items()}

    def put(self, shard: int, result: ShardResult) -> None:
        """Leave the result of a shard where the leader looks."""
        if len(result.metrics) > MOST_METRICS:
            raise EngineError(f"a loss reports {len(result.metrics)} metrics, over {MOST_METRICS}")
        row = self._pools["gradients"].row(shard)
        np.copyto(row["gradient"], result.gradient)
        row["metrics"][: len(result.metrics)] = list(result.metrics.values())
        row["finite"][0] = result.finite

    def answer(self, metrics: list[str]) -> None:
        """All shards of this step are done; `metrics` names their numbers."""
        self._follower.tell({"metrics": metrics})

    def give_up(self, error: str) -> None:
        """Tell the leader that no answer will come."""
        self._follower.tell({"failed": error[:1000]})

    def close(self) -> None:
        """Leave."""
        self._follower.close()
        for pool in self._pools.values():
            pool.close()
