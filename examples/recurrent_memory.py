"""A task for memory:  python -m rlinf_async run examples/recurrent_memory.py --core none

A cue is shown in an episode's first step only and has to be named in its last one. With a core
that remembers, PPO learns it; without (`--core none`) no policy does better than a guess.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae, linear
from rlinf_async.models import ActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """PPO with a recurrent core, trained on whole segments with gradients through time."""

    core: Literal["gru", "none"] = "gru"
    """What remembers."""
    cues: int = 4
    """How many cues there are; a guess is right once in so many episodes."""
    delay: int = 10
    """Steps between seeing the cue and having to name it."""
    env_count: int = 32
    """Environments in all."""
    iterations: int = 60
    """Batches in all."""
    epochs: int = 4
    """Passes over each batch."""
    learning_rate: float = 3e-3
    """Of the first iteration; it falls to 0 in a straight line."""
    hidden: tuple[int, ...] = (32,)
    """Units of each hidden layer before the core."""
    units: int = 32
    """Length of the core's state."""


class Recall(gymnasium.Env[Any, Any]):
    """Observes the cue at first, then nothing, then that it is time; earns 1 for the cue's name."""

    def __init__(self, *, cues: int, delay: int) -> None:
        self.cues, self.last = cues, delay + 1
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draw a cue and show it."""
        super().reset(seed=seed)
        self.cue, self.passed = int(self.np_random.integers(self.cues)), 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """Only the last action counts."""
        done = self.passed == self.last
        reward = float(done and action == self.cue)
        self.passed += 1
        return self.observe(), reward, done, False, {}

    def observe(self) -> Any:
        """One number for each cue, and one that says when to name it."""
        seen = np.zeros(self.cues + 1, np.float32)
        if self.passed == 0:
            seen[self.cue] = 1.0
        seen[-1] = self.passed == self.last
        return seen


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, train on it, publish the new version; again."""
    horizon = 2 * (cfg.delay + 2)  # two whole episodes
    envs = run.envs(partial(Recall, cues=cfg.cues, delay=cfg.delay), count=cfg.env_count)
    policy = run.policy(
        ActorCritic,
        envs.spaces,
        hidden=cfg.hidden,
        recurrent=None if cfg.core == "none" else cfg.core,
        recurrent_units=cfg.units,
    )
    async with run.pipeline(iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * horizon)
        async for batch in batches:
            report = await pipe.train(
                batch,
                loss=PPOLoss(clip=0.2, value_weight=0.5, entropy_weight=0.01),
                advantages=gae(gamma=0.99, lam=0.95),
                optimizer=Adam(learning_rate=linear(cfg.learning_rate, 0.0), max_grad_norm=0.5),
                epochs=cfg.epochs,
                minibatch=8 * horizon,
            )
            await pipe.publish()
            run.log(report)
