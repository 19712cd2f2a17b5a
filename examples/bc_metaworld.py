"""Behaviour cloning:  python -m rlinf_async run examples/bc_metaworld.py --task reach-v3

A scripted expert demonstrates some episodes, which are recorded, and a policy learns to act the
same (Pomerleau, 1991). What it collects meanwhile is not trained on: it shows how well it does.
Before the first run: python -m rlinf_async venvs install metaworld
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam, CloningLoss, cosine, raw_returns
from rlinf_async.envs.suites.metaworld_expert import MetaWorldExpert
from rlinf_async.models import GaussianActorCritic
from rlinf_async.workers.expert import ExpertWorker


@dataclass(frozen=True, kw_only=True)
class Config:
    """Cloning of recorded episodes."""

    task: str = "reach-v3"
    """A task of Meta-World."""
    demonstrations: int = 25
    """Episodes of the expert."""
    recording: str = ""
    """Folder of recorded episodes to learn from, instead of new demonstrations."""
    env_count: int = 8
    """Environments in which the policy shows what it can do."""
    horizon: int = 25
    """Steps of each of them in an iteration."""
    iterations: int = 40
    """Versions in all."""
    epochs: int = 10
    """Passes over the demonstrations in an iteration."""
    minibatch: int = 128
    """Steps in one optimizer step."""
    learning_rate: float = 1e-3
    """Of the first iteration; it falls to 0."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    evaluation_episodes: int = 20
    """Whole episodes on which the last version is scored."""


async def main(run: Run, cfg: Config) -> None:
    """Demonstrate, clone, evaluate."""
    envs = run.envs(f"metaworld/{cfg.task}", count=cfg.env_count)
    policy = run.policy(
        GaussianActorCritic, envs.spaces, hidden=cfg.hidden, normalize_observations=False
    )
    expert = run.worker(
        ExpertWorker, expert=MetaWorldExpert(task=cfg.task), interpreter=envs.interpreter
    )
    folder = cfg.recording or str(run.folder.path / "demonstrations")
    loss = CloningLoss(demonstrations=folder, keep=0)
    optimizer = Adam(learning_rate=cosine(cfg.learning_rate, 0.0), max_grad_norm=1.0)

    async with run.pipeline(iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        if not cfg.recording:
            shown = await expert.demonstrate(
                folder=folder, env=envs.env, episodes=cfg.demonstrations, seed=run.options.seed
            )
            print(f"the expert succeeded in {shown['success']:.0%} of its episodes", flush=True)
        async for batch in batches:
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
            run.log(report, scored)
