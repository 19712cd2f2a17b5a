"""Checks an off-policy configuration and makes its learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_async.algorithms.off_policy.records import IQL, SAC, TD3, CrossQ, OffPolicy
from rlinf_async.algorithms.off_policy.sampling import Memory
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.errors import BadInput
from rlinf_async.models.squashed import Deterministic, SquashedGaussian

if TYPE_CHECKING:
    from rlinf_async.algorithms.off_policy.learner import OffPolicyLearner


def make_off_policy_learner(
    policy: Any,
    *,
    algorithm: OffPolicy,
    memory: Memory,
    optimizer: Adam,
    updates: int,
    minibatch: int,
    warmup: int,
    n_step: int,
    normalize: bool,
    iterations: int,
    seed: int,
) -> OffPolicyLearner:
    """The learner; BadInput for a combination that cannot be right."""
    check_off_policy(policy, algorithm, optimizer)
    if isinstance(algorithm, IQL) and n_step != 1:
        raise BadInput("pipe.update", "IQL's targets are of one step", got=f"n_step={n_step}")
    from rlinf_async.algorithms.off_policy.learner import OffPolicyLearner

    return OffPolicyLearner(
        policy,
        algorithm=algorithm,
        memory=memory,
        optimizer=optimizer,
        updates=updates,
        minibatch=minibatch,
        warmup=warmup,
        n_step=n_step,
        normalize=normalize,
        iterations=iterations,
        seed=seed,
    )


def check_off_policy(policy: Any, algorithm: Any, optimizer: Any) -> None:
    """BadInput where policy, algorithm and optimizer do not fit each other."""
    who = "pipe.update"
    if not isinstance(algorithm, SAC | CrossQ | TD3 | IQL):
        raise BadInput(
            who, "algorithm", expected="SAC, CrossQ, TD3 or IQL(...)", got=repr(algorithm)
        )
    fitting = Deterministic if isinstance(algorithm, TD3) else SquashedGaussian
    if not isinstance(policy, fitting):
        raise BadInput(
            who,
            f"{type(algorithm).__name__} does not learn a {type(policy).__name__}",
            expected=fitting.__name__,
            fix=f"use run.policy({fitting.__name__}, envs.spaces)",
        )
    if not isinstance(optimizer, Adam):
        raise BadInput(who, "optimizer", expected="Adam(...)", got=repr(optimizer))
    unused = {"weight_decay": 0.0, "groups": (), "average_decay": None}
    for name, default in unused.items():
        if getattr(optimizer, name) != default:
            raise BadInput(who, f"Adam's {name} is not used by off-policy algorithms")
