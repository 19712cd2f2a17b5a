"""GRPO:  python -m rlinf_async run examples/grpo_metaworld.py --init-from CLONE/checkpoint

Groups of episodes begin in one state, and each is compared with the others of its group (Shao et
al., 2024): that needs no values, and no reward but success. The policy it starts from must succeed
now and then. Clone one first, from two demonstrations, with the same `--hidden`:

    python -m rlinf_async run examples/bc_metaworld.py --demonstrations 2 --minibatch 32 --epochs 20

Before the first run: python -m rlinf_async venvs install metaworld
"""

from dataclasses import dataclass

from rlinf_async import Episodes, Run
from rlinf_async.algorithms import Adam, group_relative, grpo
from rlinf_async.envs.wrappers import SuccessReward
from rlinf_async.models import GaussianActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """Group-relative policy optimization from a cloned policy."""

    task: str = "reach-v3"
    """A task of Meta-World."""
    env_count: int = 16
    """Environments in all."""
    groups: int = 8
    """Groups of a batch."""
    group_size: int = 8
    """Episodes of a group."""
    replacements: int = 8
    """Groups that may be tried in the place of groups that tie."""
    limit: int = 150
    """Steps of an episode."""
    iterations: int = 20
    """Batches in all."""
    max_lag: int = 0
    """Versions a sample may be old when trained on; 0 is exactly on-policy."""
    epochs: int = 4
    """Passes over each batch."""
    minibatch: int = 1024
    """Steps in one optimizer step."""
    learning_rate: float = 1e-3
    clip: float = 0.2
    """How far the probability ratio counts below 1."""
    clip_high: float = 0.28
    """How far it counts above 1."""
    kl_weight: float = 0.0
    """Weight of the distance to the cloned policy."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    evaluate_every: int = 5
    """Iterations between evaluations."""
    evaluation_episodes: int = 50
    """Whole episodes of fresh seeds on which a version is scored."""


async def main(run: Run, cfg: Config) -> None:
    """Collect groups, compare, train, publish; and score now and then."""
    envs = run.envs(
        f"metaworld/{cfg.task}",
        count=cfg.env_count,
        wrappers=[SuccessReward()],
        time_limit=cfg.limit,
    )
    policy = run.policy(
        GaussianActorCritic, envs.spaces, hidden=cfg.hidden, normalize_observations=False
    )
    episodes = Episodes(
        groups=cfg.groups,
        size=cfg.group_size,
        limit=cfg.limit,
        replacements=cfg.replacements,
    )
    loss = grpo(clip=cfg.clip, clip_high=cfg.clip_high, kl_weight=cfg.kl_weight)
    optimizer = Adam(learning_rate=cfg.learning_rate, max_grad_norm=1.0)

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, episodes=episodes)
        async for batch in pipe.pack(segments):
            due = batch.index % cfg.evaluate_every == 0
            scored = await pipe.evaluate(episodes=cfg.evaluation_episodes) if due else None
            report = await pipe.train(
                batch,
                loss=loss,
                advantages=group_relative("grpo"),
                optimizer=optimizer,
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
            )
            if await pipe.publish() == cfg.iterations:
                scored = await pipe.evaluate(episodes=cfg.evaluation_episodes)
            run.log(report, scored)
