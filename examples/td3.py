"""TD3 on a MuJoCo task:  python -m rlinf_async run examples/td3.py --env InvertedPendulum-v5"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam
from rlinf_async.algorithms.off_policy import TD3, Replay
from rlinf_async.models import Deterministic


@dataclass(frozen=True, kw_only=True)
class Config:
    """Twin delayed deterministic policy gradient."""

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
    exploration: float = 0.1
    """Deviation of the acting policy's noise, over half the range of the actions."""
    learning_rate: float = 1e-3
    """Of actor and critics."""
    gamma: float = 0.99
    """Discount of one step."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, of actor and critics each."""


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, store it and learn from replay, publish the new version; again."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    half = max(envs.spaces.action.high)  # noise is in action units
    policy = run.policy(
        Deterministic, envs.spaces, hidden=cfg.hidden, exploration=cfg.exploration * half
    )
    algorithm = TD3(
        gamma=cfg.gamma, hidden=cfg.hidden, target_noise=0.2 * half, noise_clip=0.5 * half
    )
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=None, eps=1e-8)

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
