"""DAgger:  python -m rlinf_async run examples/dagger_metaworld.py --task reach-v3

The policy acts, an expert says what it would have done instead, and the policy learns from all that
was ever said (Ross et al., 2011): so it sees the states that its own mistakes lead to.
Before the first run: python -m rlinf_async venvs install metaworld
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from rlinf_async import Run, Stream
from rlinf_async.algorithms import Adam, CloningLoss, cosine, raw_returns
from rlinf_async.envs.suites.metaworld_expert import MetaWorldExpert
from rlinf_async.execution.records import Batch
from rlinf_async.models import GaussianActorCritic
from rlinf_async.workers.expert import ExpertWorker


@dataclass(frozen=True, kw_only=True)
class Config:
    """Dataset aggregation with a scripted expert."""

    task: str = "reach-v3"
    """A task of Meta-World."""
    env_count: int = 8
    """Environments in all."""
    horizon: int = 100
    """Steps of each environment in a batch."""
    iterations: int = 25
    """Batches in all."""
    keep: int = 25
    """Batches that are remembered and trained on."""
    epochs: int = 2
    """Passes over all of them in an iteration."""
    minibatch: int = 128
    """Steps in one optimizer step."""
    learning_rate: float = 1e-3
    """Of the first iteration; it falls to 0."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    evaluation_episodes: int = 20
    """Whole episodes on which the last version is scored."""


async def main(run: Run, cfg: Config) -> None:
    """Collect, let the expert relabel, train on all of it, publish."""
    envs = run.envs(f"metaworld/{cfg.task}", count=cfg.env_count)
    policy = run.policy(
        GaussianActorCritic, envs.spaces, hidden=cfg.hidden, normalize_observations=False
    )
    expert = run.worker(
        ExpertWorker, expert=MetaWorldExpert(task=cfg.task), interpreter=envs.interpreter
    )
    loss = CloningLoss(keep=cfg.keep)
    optimizer = Adam(learning_rate=cosine(cfg.learning_rate, 0.0), max_grad_norm=1.0)
    told: list[dict[str, float]] = []

    async def relabelled(batches: Stream[Batch]) -> AsyncIterator[Batch]:
        async for batch in batches:
            told.append(await expert.relabel(batch=batch))
            yield batch

    async with run.pipeline(iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        async for batch in pipe.stage(relabelled, batches):
            report = await pipe.train(
                batch,
                loss=loss,
                advantages=raw_returns(gamma=1.0),
                optimizer=optimizer,
                epochs=cfg.epochs,
                minibatch=cfg.minibatch,
            )
            last = await pipe.publish() == cfg.iterations
            scored = await pipe.evaluate(episodes=cfg.evaluation_episodes) if last else None
            run.log(replace(report, metrics={**report.metrics, **told[batch.index]}), scored)
