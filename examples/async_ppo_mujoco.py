"""Asynchronous PPO:  python -m rlinf_async run examples/async_ppo_mujoco.py --max-lag 2

While batch n is trained on, up to `max_lag` further ones are collected with older versions.
Clipping around the newest version, and weighing samples by how the versions differ, keeps them
useful (Hilton et al., 2022). `lag/<k>` in the log is the share of samples k versions old so far.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae, linear
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """Decoupled PPO on lagged samples."""

    env: str = "HalfCheetah-v5"
    """Environment id."""
    env_count: int = 64
    """Environments in all."""
    horizon: int = 32
    """Steps of each environment in a batch."""
    iterations: int = 250
    """Batches in all; each is collected, trained on, and followed by one new version."""
    max_lag: int = 1
    """Versions a sample may be old when trained on; 0 is exactly on-policy."""
    correction: Literal["decoupled", "interpolate"] = "decoupled"
    """Centre of the clip: log-probs of the newest version, or an approximation of them."""
    weight_cap: float = 2.0
    """Largest weight of a sample."""
    epochs: int = 10
    """Passes over each batch."""
    minibatch: int = 256
    """Env steps in one optimizer step."""
    learning_rate: float = 3e-4
    """Of the first iteration; it falls to 0 in a straight line."""
    gamma: float = 0.99
    """Discount of one step."""
    lam: float = 0.95
    """Decay of the advantage's trace."""
    clip: float = 0.2
    """How far from 1 the probability ratio counts."""
    target_kl: float | None = None
    """End an update once the approximate KL is above 1.5 times this."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of actor and critic each."""


async def main(run: Run, cfg: Config) -> None:
    """Collect ahead, train on each batch in its turn, publish."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    continuous = envs.spaces.action.kind == "continuous"
    policy = run.policy(
        GaussianActorCritic if continuous else CategoricalActorCritic,
        envs.spaces,
        hidden=cfg.hidden,
        normalize_observations=True,
    )
    loss = PPOLoss(
        clip=cfg.clip,
        correction=cfg.correction,
        weight_cap=cfg.weight_cap,
        target_kl=cfg.target_kl,
    )
    advantages = gae(gamma=cfg.gamma, lam=cfg.lam, scale_rewards=True)
    optimizer = Adam(learning_rate=linear(cfg.learning_rate, 0.0), max_grad_norm=0.5)
    seen: Counter[int] = Counter()

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        async for batch in batches:  # batch n was collected with version max(0, n - max_lag)
            report = await pipe.train(
                batch,
                loss=loss,
                advantages=advantages,
                optimizer=optimizer,
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
            )
            await pipe.publish()
            for segment in batch.segments:
                seen[batch.index - segment.oldest_version] += segment.env_steps
            shares = {f"lag/{lag}": count / seen.total() for lag, count in sorted(seen.items())}
            run.log(replace(report, metrics={**report.metrics, **shares}))
