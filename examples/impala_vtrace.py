"""IMPALA on a MuJoCo task:  python -m rlinf_async run examples/impala_vtrace.py --max-lag 2

Collecting and training overlap; V-trace corrects for the versions between acting and learning
(Espeholt et al., 2018). Each batch is trained on once, with the plain policy gradient.
"""

from dataclasses import dataclass

from rlinf_async import Run
from rlinf_async.algorithms import Adam, PolicyGradientLoss, linear, vtrace
from rlinf_async.models import CategoricalActorCritic, GaussianActorCritic


@dataclass(frozen=True, kw_only=True)
class Config:
    """Actor-critic with V-trace."""

    env: str = "InvertedPendulum-v5"
    """Environment id."""
    env_count: int = 32
    """Environments in all."""
    horizon: int = 16
    """Steps of each environment in a batch."""
    iterations: int = 300
    """Batches in all; each is collected, trained on, and followed by one new version."""
    max_lag: int = 2
    """Versions a sample may be old when trained on."""
    minibatch: int = 256
    """Env steps in one optimizer step."""
    learning_rate: float = 1e-3
    """Of the first iteration; it falls to 0 in a straight line."""
    gamma: float = 0.99
    """Discount of one step."""
    lam: float = 0.95
    """Decay of the trace; 1 is IMPALA's own."""
    rho_bar: float = 1.0
    """Cap of the importance ratio in the targets."""
    c_bar: float = 1.0
    """Cap of the ratio in the trace."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of actor and critic each."""


async def main(run: Run, cfg: Config) -> None:
    """Collect with versions up to `max_lag` old, train once on each batch, publish."""
    envs = run.envs(cfg.env, count=cfg.env_count)
    continuous = envs.spaces.action.kind == "continuous"
    policy = run.policy(
        GaussianActorCritic if continuous else CategoricalActorCritic,
        envs.spaces,
        hidden=cfg.hidden,
        normalize_observations=True,
    )
    loss = PolicyGradientLoss(
        value_weight=cfg.value_weight,
        entropy_weight=cfg.entropy_weight,
        normalize_advantages="batch",
    )
    advantages = vtrace(
        gamma=cfg.gamma, lam=cfg.lam, rho_bar=cfg.rho_bar, c_bar=cfg.c_bar, scale_rewards=True
    )
    optimizer = Adam(learning_rate=linear(cfg.learning_rate, 0.0), max_grad_norm=0.5)

    async with run.pipeline(max_lag=cfg.max_lag, iterations=cfg.iterations) as pipe:
        segments = pipe.rollout(policy, envs, horizon=cfg.horizon)
        batches = pipe.pack(segments, env_steps=cfg.env_count * cfg.horizon)
        async for batch in batches:  # batch n was collected with version max(0, n - max_lag)
            report = await pipe.train(
                batch,
                loss=loss,
                advantages=advantages,
                optimizer=optimizer,
                minibatch=cfg.minibatch,
            )
            await pipe.publish()
            run.log(report)
