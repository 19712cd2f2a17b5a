"""PPO from pixels alone:  python -m rlinf_async run examples/ppo_pixels.py

The policy sees its last frames of 64 x 64 pixels and nothing else; two of them show motion.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae, linear
from rlinf_async.envs.rendering import Pixels
from rlinf_async.envs.wrappers import FrameStack
from rlinf_async.models import ActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """PPO with a convolutional encoder that actor and critic share."""

    env: str = "InvertedPendulum-v5"
    """Environment id of a MuJoCo task."""
    view: Literal["camera", "drawn"] = "camera"
    """camera: OpenGL images in colour. drawn: grey lines drawn with numpy, of the pendulum only."""
    side: int = 64
    """Pixels of an image's side."""
    frames: int = 2
    """Last images that the policy sees."""
    env_count: int = 16
    """Environments in all."""
    horizon: int = 64
    """Steps of each environment in a batch."""
    iterations: int = 100
    """Batches in all."""
    epochs: int = 4
    """Passes over each batch."""
    minibatch: int = 256
    """Env steps in one optimizer step."""
    shards: int = 1
    """Parts of a minibatch's gradient; cores that are idle while training runs compute some."""
    learning_rate: float = 1e-3
    """Of the first iteration; it falls to 0 in a straight line."""
    channels: int = 16
    """Channels of the first convolution; later ones have twice as many."""


class DrawnPendulum(gymnasium.Wrapper[Any, Any, Any, Any]):
    """InvertedPendulum-v5 seen as its last grey frames [frames, side, side], without OpenGL."""

    def __init__(self, *, side: int, frames: int) -> None:
        super().__init__(gymnasium.make("InvertedPendulum-v5"))
        self.frames: deque[Any] = deque(maxlen=frames)
        self.observation_space = spaces.Box(0, 255, (frames, side, side), np.uint8)
        self.x, self.y = np.meshgrid(np.linspace(-1.3, 1.3, side), np.linspace(0.9, -1.7, side))

    def reset(self, **options: Any) -> Any:
        """An episode begins with copies of its first frame."""
        observation, info = self.env.reset(**options)
        self.frames.extend([self.draw(observation)] * self.observation_space.shape[0])
        return np.stack(self.frames), info

    def step(self, action: Any) -> Any:
        """The oldest frame goes."""
        observation, *rest = self.env.step(action)
        self.frames.append(self.draw(observation))
        return np.stack(self.frames), *rest

    def draw(self, observation: Any) -> Any:
        """The cart as a box and the pole as a line, with soft edges."""
        cart, angle = observation[0], observation[1]
        dx, dy = 0.6 * np.sin(angle), 0.6 * np.cos(angle)
        along = np.clip(((self.x - cart) * dx + self.y * dy) / 0.36, 0, 1)
        far = np.hypot(self.x - cart - along * dx, self.y - along * dy)
        pole = np.clip(1.5 - far / 0.04, 0, 1)
        edge = np.maximum(np.abs(self.x - cart) / 0.1, np.abs(self.y + 0.05) / 0.05)
        return (255 * np.maximum(pole, 0.5 * np.clip(1.5 - edge, 0, 1))).astype(np.uint8)


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, train on it, publish the new version; again."""
    if cfg.view == "drawn":
        drawn = partial(DrawnPendulum, side=cfg.side, frames=cfg.frames)
        envs = run.envs(drawn, count=cfg.env_count)
    else:
        pixels = Pixels(height=cfg.side, width=cfg.side)
        stack = [FrameStack(count=cfg.frames)]
        envs = run.envs(cfg.env, count=cfg.env_count, pixels=pixels, wrappers=stack)
    policy = run.policy(ActorCritic, envs.spaces, hidden=(), image_channels=cfg.channels)
    async with run.pipeline(iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        async for batch in batches:
            report = await pipe.train(
                batch,
                loss=PPOLoss(clip=0.2, value_weight=0.5),
                advantages=gae(gamma=0.99, lam=0.95, scale_rewards=True),
                optimizer=Adam(learning_rate=linear(cfg.learning_rate, 0.0), max_grad_norm=0.5),
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
                shards=cfg.shards,
            )
            await pipe.publish()
            run.log(report)
