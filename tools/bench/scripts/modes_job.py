"""One live job whose mode is changed from block to block, for `modes.py`.

    python -m rlinf_async run tools/bench/scripts/modes_job.py --mode auto --max-lag 1 --out FILE

First the planner chooses undisturbed. With --slow-after the environments then become five times
slower in the middle of the run, and the planner is waited for again. Then, in rounds, every mode is
pinned for a block of whole iterations, in an order that changes from round to round; `auto` is one
of the modes. Each block is one JSON line. A block in which something else kept the machine busy is
repeated and counted.
"""

import functools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.envs.rendering import Pixels
from rlinf_async.models import ActorCritic, GaussianActorCritic

MODES = ("collocated", "hybrid", "disaggregated", "auto")
LATE = 100
"""Iterations after which a planner that has not changed anything will not do so."""
PATIENCE = 2
"""Times that a disturbed block is measured again."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A workload, and how long it is measured."""

    workload: Literal["state", "pixels", "python", "heavy", "slowing"] = "state"
    """state: MuJoCo in batch, small policy. pixels: camera images. python: one simulator object for
    each environment. heavy: light simulator, large policy. slowing: a Python simulator that can
    become five times slower."""
    slow_after: int = 0
    """Iterations under the planner's first choice before the simulator becomes slower; 0: never."""
    rounds: int = 4
    """Blocks of each mode."""
    block_s: float = 1.0
    """Seconds of a block, at least."""
    disturbed: float = 0.05
    """Share of the machine that something else may use in a block."""
    max_lag: int = 1
    """Versions."""
    serial_iterations: int = 40
    """Iterations of a job without blocks."""
    out: str = ""
    """File for the blocks. Empty: no blocks, the engine's own mode throughout."""


def python_ant() -> gymnasium.Env[Any, Any]:
    """Gymnasium's own Ant, stepped one by one in Python."""
    return gymnasium.make("Ant-v5")


class Slowing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A pendulum that is simulated five times in each step once the file `slow` exists."""

    def __init__(self, *, slow: str) -> None:
        super().__init__(gymnasium.make("InvertedPendulum-v5"))
        self.slow = slow

    def step(self, action: Any) -> Any:
        """The same transition, however often it is computed."""
        data = self.unwrapped.data
        for _ in range(4 if os.path.exists(self.slow) else 0):
            before = data.qpos.copy(), data.qvel.copy()
            self.unwrapped.do_simulation(action, self.unwrapped.frame_skip)
            self.unwrapped.set_state(*before)
        return super().step(action)


def workload(run: Run, name: str) -> tuple[Any, Any, dict[str, int]]:
    """Environments, policy, and the sizes of an iteration."""
    if name == "pixels":
        envs = run.envs("InvertedPendulum-v5", count=16, pixels=Pixels(height=64, width=64))
        policy = run.policy(ActorCritic, envs.spaces, hidden=(), image_channels=8)
        return envs, policy, {"horizon": 16, "epochs": 2, "minibatch": 128}
    if name == "python":
        envs = run.envs(functools.partial(python_ant), count=32, backend="loop")
        policy = run.policy(GaussianActorCritic, envs.spaces, hidden=(64, 64))
        return envs, policy, {"horizon": 16, "epochs": 10, "minibatch": 64}
    if name == "slowing":
        slow = str(run.folder.path / "slow")
        envs = run.envs(functools.partial(Slowing, slow=slow), count=32, backend="loop")
        policy = run.policy(GaussianActorCritic, envs.spaces, hidden=(256, 256))
        return envs, policy, {"horizon": 16, "epochs": 10, "minibatch": 256}
    if name == "heavy":
        envs = run.envs("InvertedPendulum-v5", count=32)
        policy = run.policy(GaussianActorCritic, envs.spaces, hidden=(256, 256))
        return envs, policy, {"horizon": 16, "epochs": 4, "minibatch": 256}
    envs = run.envs("HalfCheetah-v5", count=64)
    policy = run.policy(GaussianActorCritic, envs.spaces, hidden=(64, 64))
    return envs, policy, {"horizon": 16, "epochs": 10, "minibatch": 256}


class Machine:
    """What the cores did since the last look: seconds by clock, and busy with something else."""

    def __init__(self, cpu_s: Any) -> None:
        self._cpu_s = cpu_s
        self._then = self._look()

    def since(self) -> tuple[float, float]:
        """Seconds that have passed, and the share of all cores that others kept busy."""
        before, self._then = self._then, self._look()
        wall_s, busy_s, own_s = (now - then for now, then in zip(self._then, before, strict=True))
        cores = len(os.sched_getaffinity(0))
        return wall_s, max(0.0, busy_s - own_s) / (wall_s * cores)

    def _look(self) -> tuple[float, float, float]:
        with open("/proc/stat") as stat:
            ticks = [int(field) for field in stat.readline().split()[1:9]]
        busy_s = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy_s, self._cpu_s() + time.process_time()


class Blocks:
    """Which mode comes when, and what each block measured."""

    def __init__(self, cfg: Config, pipe: Any, slow: Path) -> None:
        self._cfg, self._pipe = cfg, pipe
        self._plan = self._order()
        self._machine = Machine(pipe.cpu_s)
        self._mode, self._round = "", 0
        self._skip, self._iterations, self._repeats = 0, 0, 0
        self._began_s = time.perf_counter()
        self._slow = slow
        self._chosen: str | None = None
        self._before, self._since, self._switches = "", 0, 0
        self._replanned: int | None = None
        self.finished = False

    def iteration(self) -> None:
        """One has ended."""
        if not self._mode:
            if self._settled():
                self._next()
            return
        if self._skip:
            self._skip -= 1
            if not self._skip:
                self._machine.since()
            return
        self._iterations += 1
        if time.perf_counter() - self._machine._then[0] >= self._cfg.block_s and self._whole():
            self._end()

    def _settled(self) -> bool:
        """Whether the planner has chosen for the load that the blocks are to measure."""
        mode, settled = self._pipe.arrangement
        if self._chosen is None:
            if settled:
                self._chosen = self._before = mode
                settled_s = time.perf_counter() - self._began_s
                self._write({"settled": mode, "settled_s": settled_s})
            return settled and not self._cfg.slow_after
        self._since += 1
        if self._since <= self._cfg.slow_after:
            self._switches += mode != self._before
            self._before = mode
            if self._since == self._cfg.slow_after:
                self._slow.touch()
            return False
        if mode != self._chosen and self._replanned is None:
            self._replanned = self._since - self._cfg.slow_after
        late = self._since - self._cfg.slow_after > LATE
        if late or (self._replanned is not None and settled):
            found = {"replanned": mode, "iterations": self._replanned, "switches": self._switches}
            self._write(found)
        return late or (self._replanned is not None and settled)

    def _whole(self) -> bool:
        """Where phases alternate, k + 1 batches are collected in one turn and then trained."""
        return self._iterations % (self._cfg.max_lag + 1) == 0

    def _end(self) -> None:
        wall_s, others = self._machine.since()
        disturbed = others > self._cfg.disturbed
        self._write(
            {
                "round": self._round,
                "mode": self._mode,
                "ran": self._pipe.arrangement[0],
                "iteration_s": wall_s / self._iterations,
                "others": others,
                "kept": not disturbed or self._repeats == PATIENCE,
            }
        )
        if disturbed and self._repeats < PATIENCE:
            self._repeats += 1
            self._iterations, self._skip = 0, 1
            return
        self._next()

    def _next(self) -> None:
        try:
            self._round, self._mode = next(self._plan)
        except StopIteration:
            self.finished = True
            return
        self._pipe.pin(self._mode)
        self._iterations, self._repeats, self._skip = 0, 0, 1 + self._cfg.max_lag

    def _order(self) -> Iterator[tuple[int, str]]:
        """A Latin square: every mode stands in every place of a round equally often."""
        for number in range(self._cfg.rounds):
            shift = number % len(MODES)
            turned = (*MODES[shift:], *MODES[:shift])
            yield from ((number, mode) for mode in (turned if number % 8 < 4 else turned[::-1]))

    def _write(self, block: dict[str, Any]) -> None:
        with Path(self._cfg.out).open("a") as file:
            print(json.dumps(block), file=file)


async def main(run: Run, cfg: Config) -> None:
    envs, policy, sizes = workload(run, cfg.workload)
    horizon = sizes.pop("horizon")
    iterations = 1_000_000 if cfg.out else cfg.serial_iterations
    async with run.pipeline(max_lag=cfg.max_lag, iterations=iterations) as pipe:
        batches = pipe.pack(
            pipe.rollout(policy, envs, horizon=horizon), env_steps=envs.count * horizon
        )
        blocks = Blocks(cfg, pipe, run.folder.path / "slow")
        async for batch in batches:
            report = await pipe.train(
                batch,
                loss=PPOLoss(clip=0.2, value_weight=0.5),
                advantages=gae(gamma=0.99, lam=0.95),
                optimizer=Adam(learning_rate=3e-4, max_grad_norm=0.5),
                **sizes,
            )
            await pipe.publish()
            run.log(report)
            if cfg.out:
                blocks.iteration()
            if blocks.finished:
                break
