"""One seed for each episode, and the generator that it stands for."""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["train", "evaluate", "group"]
_STREAMS: dict[str, int] = {"train": 0, "evaluate": 1, "group": 2}


def episode_seed(run_seed: int, slot: int, episode: int, *, stream: Stream = "train") -> int:
    """The seed of one episode: 64 bits, a function of the arguments alone.

    `slot` is the number within the run, so seeds do not depend on cells or workers. The lowest bit
    tells evaluations: a training seed can never equal an evaluation seed. See `group_seed` for the
    stream `group`.
    """
    word = _STREAMS[stream]
    entropy = (run_seed, slot, episode, word) if word else (run_seed, slot, episode)
    drawn = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
    return drawn & ~1 | (word & 1)


def group_seed(run_seed: int, batch: int, group: int) -> int:
    """The seed of every episode of a group: group `group` of the work list of `batch`."""
    return episode_seed(run_seed, batch, group, stream="group")


def episode_generator(seed: int) -> np.random.Generator:
    """The generator that `gymnasium.Env.reset(seed=seed)` makes."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
