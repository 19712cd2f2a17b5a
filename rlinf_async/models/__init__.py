"""Policies. Importing this package imports no torch."""

from rlinf_async.models.actor_critic import ActorCritic
from rlinf_async.models.policies import CategoricalActorCritic, GaussianActorCritic
from rlinf_async.models.squashed import Deterministic, SquashedGaussian

__all__ = [
    "ActorCritic",
    "CategoricalActorCritic",
    "Deterministic",
    "GaussianActorCritic",
    "SquashedGaussian",
]
