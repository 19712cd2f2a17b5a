"""IQL from recorded episodes alone:

    python -m rlinf_async eval RUN --record demos --episodes 25
    python -m rlinf_async run examples/iql_offline.py --demonstrations demos

`--demonstrations` may also be an HDF5 file in Minari's format or of D4RL's arrays. The steps that
are collected show how the policy does; they are never stored or learned from.
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam
from rlinf_async.algorithms.off_policy import IQL, Demonstrations, Replay
from rlinf_async.models import SquashedGaussian


@dataclass(frozen=True, kw_only=True)
class Config:
    """Implicit Q-learning."""

    demonstrations: str
    """A recording's folder or an HDF5 file."""
    episodes: int | None = None
    """Demonstrations that are used; None: all."""
    env: str = "InvertedPendulum-v5"
    """Environment id, of the demonstrations too."""
    iterations: int = 50
    """Blocks of updates; each is followed by one new version."""
    updates: int = 100
    """Gradient updates in a block."""
    env_count: int = 4
    """Environments that the policy is looked at in."""
    horizon: int = 50
    """Steps of each between blocks."""
    learning_rate: float = 3e-4
    """Of actor, critics and value."""
    gamma: float = 0.99
    """Discount of one step."""
    expectile: float = 0.7
    """How near to the best of the recorded actions the value is."""
    beta: float = 3.0
    """How much better actions weigh more in the policy."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    evaluate_every: int = 0
    """Versions between evaluations on 10 whole episodes; 0 is never."""


async def main(run: Run, cfg: Config) -> None:
    """Make a block of updates, publish the new version, look at it; again."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    policy = run.policy(SquashedGaussian, envs.spaces, hidden=cfg.hidden)
    shown = Demonstrations(path=cfg.demonstrations, episodes=cfg.episodes)
    algorithm = IQL(gamma=cfg.gamma, hidden=cfg.hidden, expectile=cfg.expectile, beta=cfg.beta)
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=None, eps=1e-8)

    async with run.pipeline(iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        async for batch in pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon):
            report = await pipe.update(
                batch,
                algorithm=algorithm,
                replay=Replay(demonstrations=shown, online=False),
                optimizer=optimizer,
                updates=cfg.updates,
            )
            version = await pipe.publish()  # version n + 1 acts from now on
            due = cfg.evaluate_every > 0 and version % cfg.evaluate_every == 0
            run.log(report, await pipe.evaluate(episodes=10) if due else None)
