"""PPO on a MuJoCo task:  python -m rlinf_async run examples/ppo_mujoco.py --env Ant-v5 --max-lag 1

Collection and training overlap with `--max-lag 1` and more; with exact lag (the default) the
numbers are the same in every `--mode`, with any number of hosts, run after run.
"""

from dataclasses import dataclass
from typing import Literal

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae, linear, vtrace
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """PPO with generalised advantage estimation."""

    env: str = "HalfCheetah-v5"
    """Environment id."""
    env_count: int = 64
    """Environments in all."""
    horizon: int = 32
    """Steps of each environment in a batch."""
    iterations: int = 250
    """Batches in all; each is collected, trained on, and followed by one new version."""
    max_lag: int = 0
    """Versions a sample may be old when trained on; 0 is exactly on-policy."""
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
    value_weight: float = 0.5
    """Weight of the value loss."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of actor and critic each."""
    evaluate_every: int = 0
    """Versions between evaluations on 10 whole episodes; 0 is never."""
    normalize: bool = True
    """Normalise observations, and scale rewards by the deviation of the discounted return."""
    correction: Literal["clip", "decoupled", "vtrace"] = "clip"
    """For samples some versions old. clip: PPO's clip alone. decoupled: clip around the newest
    version and weigh by its ratio to the acting one. vtrace: V-trace targets and advantages."""


def make_loss(cfg: Config) -> PPOLoss:
    """The policy and value loss."""
    return PPOLoss(
        clip=cfg.clip,
        value_weight=cfg.value_weight,
        entropy_weight=cfg.entropy_weight,
        correction="decoupled" if cfg.correction == "decoupled" else None,
    )


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, train on it, publish the new version; again."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    continuous = envs.spaces.action.kind == "continuous"
    policy = run.policy(
        GaussianActorCritic if continuous else CategoricalActorCritic,
        envs.spaces,
        hidden=cfg.hidden,
        normalize_observations=cfg.normalize,
    )
    optimizer = Adam(learning_rate=linear(cfg.learning_rate, 0.0), max_grad_norm=0.5)
    estimator = vtrace if cfg.correction == "vtrace" else gae
    advantages = estimator(gamma=cfg.gamma, lam=cfg.lam, scale_rewards=cfg.normalize)

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        async for batch in batches:  # batch n was collected with version max(0, n - max_lag)
            report = await pipe.train(
                batch,
                loss=make_loss(cfg),
                advantages=advantages,
                optimizer=optimizer,
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
            )
            version = await pipe.publish()  # version n + 1 goes live: exactly once per batch
            due = cfg.evaluate_every > 0 and version % cfg.evaluate_every == 0
            run.log(report, await pipe.evaluate(episodes=10) if due else None)
