"""Replay and off-policy learning. Importing this package imports no torch."""

from rlinf_async.algorithms.off_policy.records import IQL, SAC, TD3, CrossQ, Demonstrations, Replay

__all__ = ["IQL", "SAC", "TD3", "CrossQ", "Demonstrations", "Replay"]
