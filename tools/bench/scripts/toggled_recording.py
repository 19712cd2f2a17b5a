"""A serial run that records in every other pair of iterations, for `trace_overhead.py`.

Each iteration's end (monotonic seconds), CPU seconds, whether it recorded, and how many statuses
were made for viewers meanwhile, go to `--rows`.
"""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.models import GaussianActorCritic

NOTHING = contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True)
class Config:
    """How long, and where the figures go."""

    rows: str
    """File that gets a line for each iteration."""
    env_count: int = 16
    horizon: int = 16
    iterations: int = 1_000_000


def switch(recorder: Any, *, on: bool) -> None:
    """Let a recorder record, or let its methods do nothing at all."""
    for name in ("span", "counter", "instant", "flow"):
        recorder.__dict__.pop(name, None)
    recorder._write = recorder.bench_write
    if on:
        return
    recorder.span = lambda name, items=0: NOTHING
    recorder.counter = recorder.instant = recorder.flow = recorder._write = lambda *_: None


def note(rows: str, cpu_s: float, *, on: bool, statuses: int) -> None:
    """One line about an iteration that has just ended."""
    with open(rows, "a") as file:
        file.write(f"{time.monotonic()} {cpu_s} {int(on)} {statuses}\n")


def counted(run: Run) -> list[int]:
    """How many statuses were made, from now on: each asks for the streams once."""
    count, stream_rows = [0], run.watched.stream_rows

    def counting() -> Any:
        count[0] += 1
        return stream_rows()

    run.watched.stream_rows = counting  # type: ignore[method-assign]
    return count


async def main(run: Run, cfg: Config) -> None:
    """Train and write down what each iteration cost."""
    run.recorder.bench_write = run.recorder._write  # type: ignore[attr-defined]
    envs = run.envs("HalfCheetah-v5", count=cfg.env_count)
    policy = run.policy(GaussianActorCritic, envs.spaces, hidden=(64, 64))
    steps = cfg.env_count * cfg.horizon
    async with run.pipeline(iterations=cfg.iterations) as pipe:
        batches = pipe.pack(pipe.rollout(policy, envs, horizon=cfg.horizon), env_steps=steps)
        before_s, on, statuses, counted_before = time.process_time(), True, counted(run), 0
        async for batch in batches:
            report = await pipe.train(
                batch,
                loss=PPOLoss(),
                advantages=gae(gamma=0.99, lam=0.95),
                optimizer=Adam(learning_rate=3e-4),
                epochs=2,
                minibatch=128,
            )
            await pipe.publish()
            run.log(report)
            cpu_s, so_far = time.process_time() - before_s, statuses[0]
            note(cfg.rows, cpu_s, on=on, statuses=so_far - counted_before)
            counted_before = so_far
            # on off off on: a drift of the machine's speed falls on both alike
            on = (batch.index + 1) % 4 in (0, 3)
            switch(run.recorder, on=on)
            before_s = time.process_time()
