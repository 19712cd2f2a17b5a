"""CrossQ on a MuJoCo task:  python -m rlinf_async run examples/crossq.py --env Reacher-v5"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam
from rlinf_async.algorithms.off_policy import CrossQ, Replay
from rlinf_async.models import SquashedGaussian


@dataclass(frozen=True, kw_only=True)
class Config:
    """Soft actor-critic without target networks, with batch normalisation in the critics."""

    env: str = "InvertedPendulum-v5"
    """Environment id."""
    env_count: int = 8
    """Environments in all."""
    horizon: int = 8
    """Steps of each environment in a batch."""
    iterations: int = 160
    """Batches in all; each is stored, learned from, and followed by one new version."""
    max_lag: int = 0
    """Versions the acting policy may be old."""
    updates: int = 64
    """Gradient updates after each batch."""
    warmup: int = 1000
    """Steps with random actions before the first update."""
    capacity: int = 1_000_000
    """Steps that are remembered."""
    learning_rate: float = 1e-3
    """Of actor, critics and temperature."""
    gamma: float = 0.99
    """Discount of one step."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the actor."""
    critic_hidden: tuple[int, ...] = (512, 512)
    """Units of each hidden layer of the critics, which are wide in place of targets."""


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, store it and learn from replay, publish the new version; again."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    policy = run.policy(SquashedGaussian, envs.spaces, hidden=cfg.hidden)
    algorithm = CrossQ(gamma=cfg.gamma, hidden=cfg.critic_hidden)
    # Half of Adam's usual momentum, as in the paper.
    optimizer = Adam(
        learning_rate=cfg.learning_rate, max_grad_norm=None, betas=(0.5, 0.999), eps=1e-8
    )

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        async for batch in pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon):
            report = await pipe.update(
                batch,
                algorithm=algorithm,
                replay=Replay(capacity=cfg.capacity),
                optimizer=optimizer,
                updates=cfg.updates,
                warmup=cfg.warmup,
            )
            await pipe.publish()  # version n + 1 acts from now on
            run.log(report)
