"""The flat parameter vector of any policy: its layout and its initial values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shapes = dict[str, tuple[int, ...]]


def initial_parameters(
    make_policy: Callable[[], Any], *, seed: Sequence[int]
) -> tuple[Any, Shapes, NDArray[np.float32]]:
    """Build the policy; its parameters' shapes in order, and their initial values, float32 [P].

    The built-in MLPs draw from a numpy generator. A torch module, `ActorCritic`'s too, initialises
    itself while it is built, under a torch seed made of the same words.
    """
    sequence = np.random.SeedSequence(seed)
    if hasattr(make_policy, "func") and hasattr(make_policy.func, "parameter_shapes"):
        policy = make_policy()
        rng = np.random.Generator(np.random.PCG64(sequence))
        return policy, policy.parameter_shapes(), policy.initial_parameters(rng)
    return _module_parameters(make_policy, int(sequence.generate_state(1, np.uint64)[0]))


def _module_parameters(
    make_policy: Callable[[], Any], seed: int
) -> tuple[Any, Shapes, NDArray[np.float32]]:
    import torch

    torch.manual_seed(seed)
    policy = make_policy()
    module = policy.to_module() if hasattr(policy, "to_module") else policy
    named = list(module.named_parameters())
    flat = torch.cat([p.detach().reshape(-1).float() for _, p in named])
    return policy, {name: tuple(p.shape) for name, p in named}, flat.numpy().copy()
