"""A small run with one fault planted in it, for `diagnose_faults.py`.

The moment at which a fault begins is written to `--mark`, in seconds of the monotonic clock.
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium

from rlinf_async import Run, Stream
from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.models import GaussianActorCritic

FAULTY_STEP = 400
TAKEN = 3
"""Batches that the forgetful stage takes."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is wrong."""

    fault: Literal["none", "sleeping_step", "undrained_stream", "slow_trainer"] = "none"
    mark: str = ""
    """File for the moment at which it begins."""
    iterations: int = 1_000_000


class SleepyEnv(gymnasium.Wrapper):
    """An InvertedPendulum that falls asleep in one step."""

    def __init__(self, mark: str) -> None:
        super().__init__(gymnasium.make("InvertedPendulum-v5"))
        self._mark, self._steps = mark, 0

    def step(self, action: Any) -> Any:
        """Sleeps for ever in step number `FAULTY_STEP` of the process's first environment."""
        self._steps += 1
        if self._steps == FAULTY_STEP:
            mark(self._mark)
            time.sleep(3600.0)
        return super().step(action)


def mark(file: str) -> None:
    """Write down that the fault begins now."""
    if file and not Path(file).exists():
        Path(file).write_text(str(time.monotonic()))


async def forgetful(file: str, batches: Stream) -> AsyncIterator[Any]:
    """Takes some batches, then takes no more."""
    async for batch in batches:
        yield batch
        if batch.index == TAKEN:
            mark(file)
            await asyncio.Event().wait()


async def main(run: Run, cfg: Config) -> None:
    """Train until somebody ends it."""
    sleepy = cfg.fault == "sleeping_step"
    envs = run.envs(
        functools.partial(SleepyEnv, mark=cfg.mark) if sleepy else "InvertedPendulum-v5", count=8
    )
    policy = run.policy(GaussianActorCritic, envs.spaces, hidden=(64, 64))
    slow = cfg.fault == "slow_trainer"
    async with run.pipeline(iterations=cfg.iterations, max_lag=1) as pipe:
        batches = pipe.pack(pipe.rollout(policy, envs, horizon=16), env_steps=128)
        if cfg.fault == "undrained_stream":
            stage = functools.partial(forgetful, cfg.mark)
            functools.update_wrapper(stage, forgetful)
            batches = pipe.stage(stage, batches)
        async for batch in batches:
            if slow and batch.index == 3:
                mark(cfg.mark)
            report = await pipe.train(
                batch,
                loss=PPOLoss(),
                advantages=gae(gamma=0.99, lam=0.95),
                optimizer=Adam(learning_rate=3e-4),
                epochs=40 if slow else 2,
                minibatch=32,
            )
            await pipe.publish()
            run.log(report)
