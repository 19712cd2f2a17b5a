"""Losses, advantages, optimizers and learners. Importing this package imports no torch."""

from rlinf_async.algorithms.advantages import gae, n_step, raw_returns, vtrace
from rlinf_async.algorithms.losses import PPOLoss
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.algorithms.schedules import constant, linear

__all__ = ["Adam", "PPOLoss", "constant", "gae", "linear", "n_step", "raw_returns", "vtrace"]
