"""RLPD, SAC that mixes in demonstrations:

    python -m rlinf_async eval RUN --record demos --episodes 25
    python -m rlinf_async run examples/rlpd.py --env InvertedPendulum-v5 --demonstrations demos

Without `--demonstrations` it is the same algorithm from its own steps alone.
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam
from rlinf_async.algorithms.off_policy import SAC, Demonstrations, Replay
from rlinf_async.models import SquashedGaussian


@dataclass(frozen=True, kw_only=True)
class Config:
    """Half of each minibatch from demonstrations, layer-normalised critics, many updates."""

    env: str = "InvertedPendulum-v5"
    """Environment id."""
    demonstrations: str | None = None
    """A recording's folder or an HDF5 file; None: none."""
    episodes: int = 25
    """Demonstrations that are used."""
    env_count: int = 4
    """Environments in all."""
    horizon: int = 8
    """Steps of each environment in a batch."""
    iterations: int = 100
    """Batches in all; each is stored, learned from, and followed by one new version."""
    max_lag: int = 0
    """Versions the acting policy may be old."""
    updates: int = 64
    """Gradient updates after each batch."""
    warmup: int = 200
    """Steps with random actions before the first update."""
    critics: int = 4
    """Critics in all; a target is the minimum of two of them, drawn anew for each update."""
    learning_rate: float = 3e-4
    """Of actor, critics and temperature."""
    gamma: float = 0.99
    """Discount of one step."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer, of actor and critics each."""


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, store it and learn from replay, publish the new version; again."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    policy = run.policy(SquashedGaussian, envs.spaces, hidden=cfg.hidden)
    shown = None
    if cfg.demonstrations is not None:
        shown = Demonstrations(path=cfg.demonstrations, episodes=cfg.episodes)
    algorithm = SAC(
        gamma=cfg.gamma, hidden=cfg.hidden, critics=cfg.critics, subset=2, layer_norm=True
    )
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=None, eps=1e-8)

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        async for batch in pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon):
            report = await pipe.update(
                batch,
                algorithm=algorithm,
                replay=Replay(demonstrations=shown),
                optimizer=optimizer,
                updates=cfg.updates,
                warmup=cfg.warmup,
            )
            await pipe.publish()  # version n + 1 acts from now on
            run.log(report)
