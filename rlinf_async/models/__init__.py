"""Policies. Importing this package imports no torch."""

from rlinf_async.models.policies import CategoricalActorCritic, GaussianActorCritic

__all__ = ["CategoricalActorCritic", "GaussianActorCritic"]
