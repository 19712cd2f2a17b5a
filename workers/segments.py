"""A segment while it is collected, and the weights versions that collection acts with.

Axes: T horizon, n slots of the cell.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_async.execution.worker import WorkerContext
from rlinf_async.models.acting import ActCall, Actor

Row = Mapping[str, np.ndarray]


class LiveWeights:
    """Which weights row holds which version, and which versions open segments act with.

    Versions arrive on the host's loop; segments run on its work thread.
    """

    def __init__(self) -> None:
        self.newest = -1
        self._rows: dict[int, int] = {}
        self._open: dict[OpenSegment, int] = {}
        self._lock = threading.Lock()
        self._moved: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def learn(self, version: int, row: int) -> None:
        """`version` lies in `row`; whatever that row held before is gone."""
        with self._lock:
            self._rows = {v: r for v, r in self._rows.items() if r != row}
            self._rows[version] = row
            self.newest = max(self.newest, version)

    async def all_moved_to(self, version: int) -> None:
        """Wait until no open segment acts with anything older than `version`."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._moved = asyncio.Event()
            with self._lock:
                if all(used >= version for used in self._open.values()):
                    return
            await self._moved.wait()

    def row_of(self, version: int) -> int:
        """The weights row of a live version."""
        with self._lock:
            return self._rows[version]

    def use(self, segment: OpenSegment, version: int) -> None:
        """`segment` acts with `version` from now on."""
        with self._lock:
            self._open[segment] = version
        self._wake()

    def release(self, segment: OpenSegment) -> None:
        """`segment` acts no more."""
        with self._lock:
            self._open.pop(segment, None)
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None and self._moved is not None:
            self._loop.call_soon_threadsafe(self._moved.set)


class OpenSegment:
    """One cell's segment in the making: acts step by step, then fills in log-probs and values."""

    def __init__(
        self,
        context: WorkerContext,
        actor: Actor,
        row: Row,
        names: Sequence[str],
        weights: LiveWeights,
        *,
        free_lag: bool,
    ) -> None:
        self._context, self._actor, self._row = context, actor, row
        self._observations = {name: row[f"obs/{name}"] for name in names}
        self._weights, self._free_lag = weights, free_lag
        self.slots = row["reward"].shape[1]
        """n."""
        self.version = -1
        """That acts."""
        self._since = 0
        """The step from which the present version acts."""

    def begin(self, rng: np.random.Generator, horizon: int, version: int) -> None:
        """Start with `version`; with free lag, with the newest that is live."""
        row = self._row
        row["final_value"][...] = 0.0
        row["version"][...] = -1
        self._actor.begin(rng, horizon)
        self._load(self._weights.newest if self._free_lag else version)

    def act(self, t: int) -> None:
        """Write `action[t]` and `version[t]` for the observation at t."""
        call = self.call(t)
        with self._context.recorder.span("rollout.act", items=self.slots):
            self.put(t, self._actor.act(t, call.observation))

    def call(self, t: int) -> ActCall:
        """What the policy has to be asked before step t; from then on, `version` acts."""
        if self._free_lag and self._weights.newest != self.version:
            # Values and log-probs belong to the version that acted: settle its steps first.
            self._settle(t)
            self._load(self._weights.newest)
        if t:
            self._forget_ended(t - 1)
        observation = {name: view[t] for name, view in self._observations.items()}
        return ActCall(self._actor, t, observation)

    def put(self, t: int, action: np.ndarray) -> None:
        """Write the policy's answer."""
        self._row["action"][t] = action
        self._row["version"][t] = self.version

    def finish(self, horizon: int) -> None:
        """Write the last steps' log-probs and values and the value of the last observation."""
        with self._context.recorder.span("rollout.values", items=self.slots * horizon):
            self._settle(horizon)
            self._forget_ended(horizon - 1)
            last = {name: view[horizon] for name, view in self._observations.items()}
            self._row["value"][horizon] = self._actor.value(last)
        self._weights.release(self)

    def summary(self, episodes: list[dict[str, Any]]) -> dict[str, Any]:
        """What the controller hears of the segment."""
        version_T = self._row["version"]
        executed = self._row.get("executed")
        return {
            "env_steps": version_T.size * self.slots if executed is None else int(executed.sum()),
            "oldest_version": int(version_T.min()),
            "newest_version": int(version_T.max()),
            "episodes": episodes,
        }

    def _forget_ended(self, t: int) -> None:
        """Tell the policy which episodes ended in step t, before it sees the next ones."""
        ended_n = self._row["terminated"][t] | self._row["truncated"][t]
        if ended_n.any():
            self._actor.forget(ended_n)

    def _load(self, version: int) -> None:
        self.version = version
        self._weights.use(self, version)
        self._actor.load(self._context.rows("weights", self._weights.row_of(version)))

    def _settle(self, stop: int) -> None:
        if stop > self._since:
            self._actor.finish(self._row, self._since, stop)
        self._since = stop
