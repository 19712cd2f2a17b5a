"""PPO with the reference settings of Stable-Baselines3, for `learning.py`.

    python -m rlinf_async run tools/bench/scripts/ppo_reference.py --env Hopper-v5 --seed 3

The same as `peers/sb3_ppo.py` in everything that is a setting: constant learning rate, advantages
normalised per minibatch, observation and reward normalisation.
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.models import GaussianActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """PPO with the reference settings."""

    env: str = "HalfCheetah-v5"
    """Environment id."""
    env_count: int = 8
    """Environments in all."""
    horizon: int = 256
    """Steps of each environment in a batch."""
    iterations: int = 245
    """Batches in all."""
    max_lag: int = 0
    """Versions a sample may be old when trained on; 0 is exactly on-policy."""
    learning_rate: float = 3e-4
    """Constant over the run."""
    epochs: int = 10
    """Passes over each batch."""
    minibatch: int = 64
    """Entries of a gradient step."""


async def main(run: Run, cfg: Config) -> None:
    envs = run.envs(cfg.env, count=cfg.env_count)
    policy = run.policy(
        GaussianActorCritic, envs.spaces, hidden=(64, 64), normalize_observations=True
    )
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=0.5)
    loss = PPOLoss(clip=0.2, value_weight=0.5, normalize_advantages="minibatch")
    advantages = gae(gamma=0.99, lam=0.95, scale_rewards=True)

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        async for batch in batches:
            report = await pipe.train(
                batch,
                loss=loss,
                advantages=advantages,
                optimizer=optimizer,
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
            )
            await pipe.publish()
            run.log(report)
