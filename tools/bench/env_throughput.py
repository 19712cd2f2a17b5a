"""CPU time of an environment step: ours beside bare physics, Gymnasium's vectors and EnvPool.

64 environments of each id, random actions, one core, no policy. In every round each system makes
the same number of steps, one system after another; ratios are taken within a round, and the figures
are medians over rounds. CPU time is that of the stepping thread (ours, bare) or of all the peer's
processes (AsyncVectorEnv has one for each environment), so other work on the machine does not
count.

`share_of_physics` is the CPU time of bare stepping over ours. Bare is `mujoco.batch.Batch.step`
alone, on a batch made as the task makes its own (Ant's is persistent) with the same derived fields
bound, put into the states of our environments every few steps and given the same controls.
What bare leaves out is all that makes an environment of it: contact forces, rewards, ends of
episodes, observations, resets. Both run without the clock that MuJoCo's bindings install to time
the stages of a step; the peers run in processes of their own, as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from common import BENCH, ONE_THREAD, emit, machine_to_itself, median, missing_peer, on_one_thread

ENVS = {"HalfCheetah-v5": 40, "Ant-v5": 10}
"""Steps of a round, of about the same time."""

WARM_UP = 40
PIECE = 10
"""Steps after which bare stepping takes over our states; ours and bare alternate in such pieces."""
COUNT = 64
PEERS = {"sync": "gymnasium", "async": "gymnasium", "envpool": "envpool"}
ROUNDS_APART = {"async": 4}
"""A system that is many times slower is measured in every so many rounds only."""
ANSWER_LIMIT_S = 300.0

Spent = dict[str, dict[int, float]]
"""Of each system: round to CPU microseconds per environment step."""


class Ours:
    """A cell of all slots, as a run's render worker makes it."""

    def __init__(self, env: str) -> None:
        from rlinf_async.envs.registry import make_cell

        self.cell: Any = make_cell(env, COUNT)
        self.cell.reset(range(COUNT))
        self._seed = COUNT

    def states(self) -> np.ndarray:
        """The integration states of all simulations, live."""
        cell = self.cell
        while hasattr(cell, "inner"):
            cell = cell.inner
        states: np.ndarray = cell.sims.batch.state
        return states

    def step(self, actions: np.ndarray) -> float:
        """CPU seconds of one step for each of `actions` [steps, n, A]."""
        start_s = time.thread_time()
        for action in actions:
            self.cell.step(action, self._next_seed)
        return time.thread_time() - start_s

    def _next_seed(self, slot: int) -> int:
        self._seed += 1
        return self._seed


class Bare:
    """A batch like that of `ours`, stepped and nothing else."""

    def __init__(self, env: str, ours: Ours) -> None:
        from rlinf_async.envs.batched import BatchedCell
        from rlinf_async.envs.tasks import batched_task

        task = batched_task(env)
        # Made by the task, so that settings and bound fields are the task's own.
        self._batch = BatchedCell(task, COUNT).sims.batch
        self._control, self._frame_skip = self._batch.bind("ctrl"), task.frame_skip
        self._model_states = ours.states()

    def follow(self) -> None:
        """Take over the present states of our environments."""
        self._batch.state[...] = self._model_states

    def step(self, actions: np.ndarray) -> float:
        """CPU seconds of one step for each of `actions` [steps, n, A]."""
        start_s = time.thread_time()
        for action in actions:
            self._control[...] = action
            self._batch.step(nstep=self._frame_skip)
        return time.thread_time() - start_s


class Peer:
    """Another system in a process of its own (`peers.env_steps`)."""

    def __init__(self, system: str, env: str) -> None:
        flags = ("--system", system, "--env", env, "--envs", str(COUNT))
        self._process = subprocess.Popen(
            (sys.executable, "-m", "peers.env_steps", *flags),
            cwd=BENCH,
            env=os.environ | ONE_THREAD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._name = f"{system} {env}"
        self._answer()

    def step(self, count: int) -> float:
        """CPU seconds of `count` steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._name} ended with code {self._process.wait(ANSWER_LIMIT_S)}")
        return line


@contextlib.contextmanager
def opened_peers(env: str) -> Iterator[dict[str, Peer]]:
    """All peers of one environment; their processes end with the block."""
    with contextlib.ExitStack() as stack:
        peers = {}
        for system in PEERS:
            peers[system] = Peer(system, env)
            stack.callback(peers[system].close)
        yield peers


def measure(env: str, rounds: int) -> Spent:
    """What each system takes in each round, the first one for warming up left out."""
    ours = Ours(env)
    bare = Bare(env, ours)
    spec = ours.cell.spaces.action
    rng = np.random.default_rng(0)
    spent: Spent = {name: {} for name in ("ours", "bare", *PEERS)}
    with opened_peers(env) as peers:
        # The same number of steps for all: physics costs more in some phases of an episode.
        for index in range(rounds + 1):
            count = ENVS[env] if index else WARM_UP
            shape = (count, COUNT, *spec.shape)
            actions = rng.uniform(spec.low, spec.high, shape).astype(np.float32)
            taken = alternate(ours, bare, actions)
            for name, peer in peers.items():
                if index % ROUNDS_APART.get(name, 1) == 0:
                    taken[name] = peer.step(count)
            if index:
                for name, cpu_s in taken.items():
                    spent[name][index] = cpu_s / (count * COUNT) * 1e6
    return spent


def alternate(ours: Ours, bare: Bare, actions: np.ndarray) -> dict[str, float]:
    """CPU seconds of both for the same `actions` from the same states, piece by piece."""
    taken = {"bare": 0.0, "ours": 0.0}
    for begin in range(0, len(actions), PIECE):
        piece = actions[begin : begin + PIECE]
        bare.follow()
        taken["bare"] += bare.step(piece)
        taken["ours"] += ours.step(piece)
    return taken


def ratio(spent: Spent, name: str) -> float:
    """Median over rounds of a system's CPU time over ours."""
    return median(took / spent["ours"][index] for index, took in spent[name].items())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds")
    parser.add_argument("--rounds", type=int, help="rounds (default 60, quick 12)")
    args = parser.parse_args()
    args.rounds = args.rounds or (12 if args.quick else 60)
    return args


def main() -> None:
    args = arguments()
    on_one_thread()
    for module in PEERS.values():
        if importlib.util.find_spec(module) is None:
            missing_peer(module)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    with machine_to_itself():
        spent = {env: measure(env, args.rounds) for env in ENVS}
    os.sched_setaffinity(0, cores)
    emit(
        "env_throughput",
        share_of_physics={env: ratio(spent[env], "bare") for env in ENVS},
        ratio_vs_sync={env: ratio(spent[env], "sync") for env in ENVS},
        ratio_vs_async={env: ratio(spent[env], "async") for env in ENVS},
        ratio_vs_envpool={env: ratio(spent[env], "envpool") for env in ENVS},
        cpu_us_per_step={
            env: {name: median(took.values()) for name, took in spent[env].items()} for env in ENVS
        },
        env_steps_per_cpu_s={env: 1e6 / median(spent[env]["ours"].values()) for env in ENVS},
        n=args.rounds,
    )


if __name__ == "__main__":
    main()
