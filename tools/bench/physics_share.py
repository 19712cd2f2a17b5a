"""How much of bare physics a rollout keeps: env steps/s of collecting segments over bare stepping.

Collecting is what a host does: the rollout worker acts with a 64x64 Gaussian policy on normalised
observations, the render worker steps HalfCheetah-v5, and whole segments are written into rows of
shared memory, log-probs and values included. Bare is `mujoco.batch.Batch.step` with random controls
and nothing else. Both step 64 simulations on one thread of the same core, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from common import emit, machine_to_itself, median, on_one_thread

ENV = "HalfCheetah-v5"
COUNT, CELL, HORIZON = 64, 16, 32
RESET_EVERY = 1000
"""Env steps of a bare trajectory: as long as the environment's episodes."""


class OneThread:
    """A `WorkerContext` whose workers live in this thread."""

    host = "bench"

    def __init__(self) -> None:
        from rlinf_async.tracing.recorder import Recorder

        self.recorder = Recorder("bench")
        self.pools: dict[str, Any] = {}
        self.workers: dict[str, Any] = {}

    def rows(self, pool: str, row: int) -> Mapping[str, np.ndarray]:
        """Views of a row."""
        return self.pools[pool].row(row)

    def lent(self, borrower: str, lender: str, spent_ns: int) -> None:
        """Nobody attributes time here."""

    def sibling(self, worker: str) -> Any:
        """The other worker."""
        return self.workers[worker]


class Rollout:
    """Rollout and render workers over all cells, with version 0 of a policy."""

    def __init__(self) -> None:
        from rlinf_async.communication.pool import RowPool
        from rlinf_async.envs.registry import describe_env
        from rlinf_async.execution.layout import cut_into_cells, segment_fields
        from rlinf_async.execution.spaces import Spaces
        from rlinf_async.workers.render import RenderWorker
        from rlinf_async.workers.rollout import RolloutWorker

        spaces = Spaces.from_json(describe_env(ENV)["spaces"])
        self.cells = cut_into_cells(COUNT, CELL)
        context = OneThread()
        fields = segment_fields(spaces, horizon=HORIZON, slots=CELL)
        segments = RowPool.create("segments", fields, len(self.cells))
        context.pools = {"segments": segments, "weights": weights_pool(spaces)}
        context.workers["render"] = RenderWorker(
            context,
            env=ENV,
            run_seed=0,
            cells={str(c.number): (c.first_slot, c.slots) for c in self.cells},
        )
        self._worker = RolloutWorker(
            context,
            policy=lambda: make_policy(spaces),
            spaces=spaces.to_json(),
            normalize=True,
            horizon=HORIZON,
            run_seed=0,
            cells={str(c.number): c.slots for c in self.cells},
            render_hosts={str(c.number): context.host for c in self.cells},
            free_lag=False,
            deadline_s=1.0,
        )
        asyncio.run(self._worker.adopt(version=0, row=0))
        self._batch = 0

    def collect(self) -> None:
        """One batch: a segment of every cell."""
        for cell in self.cells:
            self._worker.collect(cell.number, batch=self._batch, version=0, row=cell.number)
        self._batch += 1


class Bare:
    """One `Batch` of all simulations and random controls."""

    def __init__(self) -> None:
        from rlinf_async.envs.sims import open_sims
        from rlinf_async.envs.tasks import batched_task

        task = batched_task(ENV)
        sims = open_sims(
            task.model_file,
            COUNT,
            frame_skip=task.frame_skip,
            persistent=task.persistent,
            listed_contacts=task.listed_contacts,
        )
        self._batch, self._control = sims.batch, sims.batch.bind("ctrl")
        low, high = sims.model.actuator_ctrlrange.T
        rng = np.random.default_rng(0)
        self._controls = rng.uniform(low, high, (256, COUNT, sims.model.nu))
        self._skip, self._t = task.frame_skip, 0

    def step(self, count: int) -> None:
        """`count` env steps of every simulation."""
        for _ in range(count):
            if self._t % RESET_EVERY == 0:
                self._batch.reset()
            self._control[...] = self._controls[self._t & 255]
            self._batch.step(nstep=self._skip)
            self._t += 1


def make_policy(spaces: Any) -> Any:
    """The policy of the example script."""
    from rlinf_async.models import GaussianActorCritic

    return GaussianActorCritic(spaces, hidden=(64, 64))


def weights_pool(spaces: Any) -> Any:
    """A pool whose row 0 holds version 0."""
    from rlinf_async.algorithms.normalizers import Statistics
    from rlinf_async.communication.fields import Field
    from rlinf_async.communication.pool import RowPool

    parameters = make_policy(spaces).initial_parameters(np.random.default_rng(0))
    statistics = Statistics.initial(spaces)
    fields = [
        Field(name="parameters", shape=parameters.shape, dtype="float32"),
        Field(name="version", shape=(1,), dtype="int64"),
        *(
            Field(name=name, shape=values.shape, dtype="float64")
            for name, values in statistics.fields().items()
        ),
    ]
    pool = RowPool.create("weights", fields, 1)
    row = pool.row(0)
    row["parameters"][...] = parameters
    row["version"][0] = 0
    statistics.to_row(row)
    return pool


def steps_per_s(work: Any, steps: int, least_s: float) -> float:
    """Env steps/s of repeating `work`, which makes `steps`, for at least `least_s` CPU seconds."""
    done, start_s = 0, time.thread_time()
    while (took_s := time.thread_time() - start_s) < least_s:
        work()
        done += steps
    return done / took_s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    on_one_thread()
    rounds, least_s = (15, 0.5) if args.quick else (31, 1.0)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    rollout, bare = Rollout(), Bare()
    # As many steps as an episode has, so that both are in the middle of falling and crawling.
    bare.step(RESET_EVERY // 4)
    for _ in range(RESET_EVERY // 4 // HORIZON):
        rollout.collect()
    ours, theirs = [], []
    with machine_to_itself():
        for _ in range(rounds):
            ours.append(steps_per_s(rollout.collect, COUNT * HORIZON, least_s))
            theirs.append(steps_per_s(lambda: bare.step(HORIZON), COUNT * HORIZON, least_s))
    os.sched_setaffinity(0, cores)
    shares = [one / other for one, other in zip(ours, theirs, strict=True)]
    emit(
        "physics_share",
        share=median(shares),
        share_min=min(shares),
        share_max=max(shares),
        rollout_env_steps_per_cpu_s=median(ours),
        bare_env_steps_per_cpu_s=median(theirs),
        n=rounds,
    )


if __name__ == "__main__":
    main()
