"""Losses, advantages, optimizers and learners. Importing this package imports no torch."""

from rlinf_async.algorithms.advantages import gae, n_step, raw_returns, vtrace
from rlinf_async.algorithms.group_records import group_relative, reinforce_pp
from rlinf_async.algorithms.losses import (
    CloningLoss,
    GroupLoss,
    PolicyGradientLoss,
    PPOLoss,
    dapo,
    dr_grpo,
    grpo,
)
from rlinf_async.algorithms.optimizers import Adam, ParameterGroup
from rlinf_async.algorithms.schedules import (
    constant,
    cosine,
    exponential,
    linear,
    steps,
    warmup,
)

__all__ = [
    "Adam",
    "CloningLoss",
    "GroupLoss",
    "PPOLoss",
    "ParameterGroup",
    "PolicyGradientLoss",
    "constant",
    "cosine",
    "dapo",
    "dr_grpo",
    "exponential",
    "gae",
    "group_relative",
    "grpo",
    "linear",
    "n_step",
    "raw_returns",
    "reinforce_pp",
    "steps",
    "vtrace",
    "warmup",
]
