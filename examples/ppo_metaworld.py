"""PPO:  python -m rlinf_async run examples/ppo_metaworld.py --init-from CLONE/checkpoint

What `grpo_metaworld.py` does with groups, with a value net instead: the same task, the same reward
for success alone, from the same cloned policy.
Before the first run: python -m rlinf_async venvs install metaworld
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.envs.wrappers import SuccessReward
from rlinf_async.models import GaussianActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """Proximal policy optimization from a cloned policy."""

    task: str = "reach-v3"
    """A task of Meta-World."""
    env_count: int = 16
    """Environments in all."""
    horizon: int = 480
    """Steps of each environment in a batch."""
    limit: int = 150
    """Steps of an episode."""
    iterations: int = 20
    """Batches in all."""
    epochs: int = 4
    """Passes over each batch."""
    minibatch: int = 1024
    """Steps in one optimizer step."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    """Discount of a step."""
    lam: float = 0.95
    """Decay of the trace."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    evaluate_every: int = 5
    """Iterations between evaluations."""
    evaluation_episodes: int = 50
    """Whole episodes of fresh seeds on which a version is scored."""


async def main(run: Run, cfg: Config) -> None:
    """Collect, train, publish; and score now and then."""
    envs = run.envs(
        f"metaworld/{cfg.task}",
        count=cfg.env_count,
        wrappers=[SuccessReward()],
        time_limit=cfg.limit,
    )
    policy = run.policy(
        GaussianActorCritic, envs.spaces, hidden=cfg.hidden, normalize_observations=False
    )
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=1.0)

    async with run.pipeline(iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        async for batch in pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon):
            due = batch.index % cfg.evaluate_every == 0
            scored = await pipe.evaluate(episodes=cfg.evaluation_episodes) if due else None
            report = await pipe.train(
                batch,
                loss=PPOLoss(clip=0.2, value_weight=0.5),
                advantages=gae(gamma=cfg.gamma, lam=cfg.lam),
                optimizer=optimizer,
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
            )
            if await pipe.publish() == cfg.iterations:
                scored = await pipe.evaluate(episodes=cfg.evaluation_episodes)
            run.log(report, scored)
