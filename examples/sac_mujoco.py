"""SAC on a MuJoCo task:  python -m rlinf_async run examples/sac_mujoco.py --env Hopper-v5

With `--critics 10 --subset 2 --update-to-data 20` it is REDQ. With `--max-lag 1` collection and
learning overlap; what is replayed may be as old as it likes.
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam
from rlinf_async.algorithms.off_policy import SAC, Replay
from rlinf_async.models import SquashedGaussian


@dataclass(frozen=True, kw_only=True)
class Config:
    """Soft actor-critic with twin critics and a tuned temperature."""

    env: str = "HalfCheetah-v5"
    """Environment id."""
    env_count: int = 8
    """Environments in all."""
    horizon: int = 8
    """Steps of each environment in a batch."""
    iterations: int = 800
    """Batches in all; each is stored, learned from, and followed by one new version."""
    max_lag: int = 0
    """Versions the acting policy may be old."""
    update_to_data: float = 1.0
    """Gradient updates for each environment step."""
    warmup: int = 1000
    """Steps with random actions before the first update."""
    capacity: int = 1_000_000
    """Steps that are remembered."""
    save_replay: bool = False
    """Keep what is remembered in the checkpoint; with --init-from, begin with it."""
    n_step: int = 1
    """Rewards added up before a target bootstraps."""
    prioritised: float | None = None
    """Exponent of priorities; None samples uniformly."""
    critics: int = 2
    """Critics in all."""
    subset: int | None = None
    """Critics, drawn anew for each update, whose minimum is the target; None: all."""
    minibatch: int = 256
    """Transitions in one update."""
    learning_rate: float = 3e-4
    """Of actor, critics and temperature."""
    gamma: float = 0.99
    """Discount of one step."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, of actor and critics each."""
    evaluate_every: int = 0
    """Versions between evaluations on 10 whole episodes; 0 is never."""


async def main(run: Run, cfg: Config) -> None:
    """Collect a batch, store it and learn from replay, publish the new version; again."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    policy = run.policy(SquashedGaussian, envs.spaces, hidden=cfg.hidden)
    steps = cfg.env_count * cfg.horizon
    algorithm = SAC(gamma=cfg.gamma, hidden=cfg.hidden, critics=cfg.critics, subset=cfg.subset)
    replay = Replay(
        capacity=cfg.capacity,
        n_step=cfg.n_step,
        prioritised=cfg.prioritised,
        saved=cfg.save_replay,
    )
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=None, eps=1e-8)

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        async for batch in pipe.pack(segments, env_steps=steps):
            report = await pipe.update(
                batch,
                algorithm=algorithm,
                replay=replay,
                optimizer=optimizer,
                updates=max(1, round(cfg.update_to_data * steps)),
                minibatch=cfg.minibatch,
                warmup=cfg.warmup,
            )
            version = await pipe.publish()  # version n + 1 acts from now on
            due = cfg.evaluate_every > 0 and version % cfg.evaluate_every == 0
            run.log(report, await pipe.evaluate(episodes=10) if due else None)
