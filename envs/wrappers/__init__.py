"""Wrappers around a whole cell: what is put around environments, vectorised over their slots.

Each is a small frozen record that a script gives to `run.envs(..., wrappers=[...])`, the innermost
first. `GymnasiumWrapper` stands for any wrapper of Gymnasium by name.
"""

from __future__ import annotations

from rlinf_async.envs.wrappers.actions import ActionRepeat, StickyActions
from rlinf_async.envs.wrappers.by_name import GymnasiumWrapper
from rlinf_async.envs.wrappers.frames import FrameStack
from rlinf_async.envs.wrappers.images import Grayscale, Resize
from rlinf_async.envs.wrappers.observations import SelectObservations, TransformObservation
from rlinf_async.envs.wrappers.rewards import (
    ClipReward,
    ScaleReward,
    SuccessReward,
    TransformReward,
)

__all__ = [
    "ActionRepeat",
    "ClipReward",
    "FrameStack",
    "Grayscale",
    "GymnasiumWrapper",
    "Resize",
    "ScaleReward",
    "SelectObservations",
    "StickyActions",
    "SuccessReward",
    "TransformObservation",
    "TransformReward",
]
