"""The built-in policies as torch modules, and what the engine asks of a user's own.

A policy module has `act(observation, rng)`, `evaluate(observation, action)` and
`value(observation)`; `observation` maps names to tensors [N, *shape] as the policy sees them
(floats normalised). With chunks of actions, `evaluate` may take a third argument `executed`, int64
[N]: so many actions of each chunk count. A policy that remembers has `state_shape` and other calls;
see `RecurrentPolicyModule`.

Parameters of the built-in MLPs appear in the order of `policies`' flat vector: each of its matrices
[inputs + 1, outputs] is a weight followed by a bias.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_async.errors import BadInput
from rlinf_async.execution.memory import state_shape
from rlinf_async.models.policies import CategoricalActorCritic, GaussianActorCritic

Observation = Mapping[str, Tensor]

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class PolicyModule(Protocol):
    """What the engine calls of a policy in torch. N observations; results float32 [N]."""

    def act(self, observation: Observation, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """Sampled actions [N, *shape], their log-probs and the values of the observations."""
        ...

    def evaluate(self, observation: Observation, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs of `action` summed over its components, entropies, values."""
        ...

    def value(self, observation: Observation) -> Tensor:
        """Values of the observations."""
        ...


class RecurrentPolicyModule(Protocol):
    """What the engine calls of a policy with memory. T steps, B slots, N entries.

    The caller keeps the memory, name to float32 [N, *shape]; at an episode's start it is 0.
    """

    state_shape: Mapping[str, tuple[int, ...]]
    """Name to shape of one slot's memory."""

    def act(
        self, observation: Observation, rng: np.random.Generator, state: Observation
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Sampled actions [N, *shape], their log-probs and values [N], and the next memory."""
        ...

    def value(self, observation: Observation, state: Observation) -> Tensor:
        """Values [N] of observations, given the memory before them."""
        ...

    def evaluate_sequence(
        self,
        observation_TB: Observation,
        action_TB: Tensor,
        state_B: Observation,
        first_TB: Tensor,
        executed_TB: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values [T, B] of sequences that begin with memory `state_B`.

        `first_TB` bool: the entry begins an episode. `executed_TB` int64: see the module.
        """
        ...


class _TwoNets(nn.Module):
    """An actor MLP and a critic MLP of the same hidden sizes without shared weights."""

    def __init__(self, policy: GaussianActorCritic | CategoricalActorCritic) -> None:
        super().__init__()
        self._names = [spec.name for spec in policy.spaces.observation]
        self._activation = torch.tanh if policy.activation == "tanh" else torch.relu
        self._layers: tuple[list[tuple[nn.Parameter, nn.Parameter]], ...] = ([], [])
        for name, shape in policy.parameter_shapes().items():
            if name.startswith("hidden."):
                for layers, net in zip(self._layers, ("actor", "critic"), strict=True):
                    layers.append(self._matrix(f"{name.replace('.', '_')}_{net}", shape[1:]))
            elif name in ("actor", "critic"):
                self._layers[name == "critic"].append(self._matrix(name, shape))

    def _matrix(self, name: str, shape: tuple[int, ...]) -> tuple[nn.Parameter, nn.Parameter]:
        weight = nn.Parameter(torch.zeros(shape[0] - 1, shape[1]))
        bias = nn.Parameter(torch.zeros(shape[1]))
        self.register_parameter(f"{name}_weight", weight)
        self.register_parameter(f"{name}_bias", bias)
        return weight, bias

    def _join(self, observation: Observation) -> Tensor:
        """All observations side by side, [N, D]."""
        parts = [observation[name] for name in self._names]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _net(self, index: int, x: Tensor) -> Tensor:
        *hidden, (weight, bias) = self._layers[index]
        for hidden_weight, hidden_bias in hidden:
            x = self._activation(torch.addmm(hidden_bias, x, hidden_weight))
        return torch.addmm(bias, x, weight)

    def value(self, observation: Observation) -> Tensor:
        """Values [N]."""
        return self._net(1, self._join(observation)).squeeze(1)


class GaussianModule(_TwoNets):
    """`GaussianActorCritic` in torch; actions are raw samples [N, *shape] float32."""

    def __init__(self, policy: GaussianActorCritic) -> None:
        super().__init__(policy)
        self._shape = policy.spaces.action.shape
        self._components = policy.output_size // policy.spaces.chunk
        self.log_std = nn.Parameter(torch.full((policy.output_size,), float(policy.log_std)))

    def act(
        self, observation: Observation, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled actions, their log-probs and the values of the observations."""
        x = self._join(observation)
        mean, value = self._net(0, x), self._net(1, x).squeeze(1)
        noise = torch.from_numpy(rng.standard_normal(mean.shape, dtype=np.float32))
        action = mean + self.log_std.exp() * noise
        return action.reshape(-1, *self._shape), self._logp(mean, action), value

    def evaluate(
        self, observation: Observation, action: Tensor, executed: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values, [N] each; `executed` as in the module."""
        x = self._join(observation)
        mean, value = self._net(0, x), self._net(1, x).squeeze(1)
        entropy = self.log_std + (0.5 + _HALF_LOG_TAU)
        action = action.reshape(len(x), -1)
        if executed is None:
            return self._logp(mean, action), entropy.sum().expand(len(x)), value
        counted = self._counted(executed)
        scaled = (action - mean) * (-self.log_std).exp()
        logp = -0.5 * scaled.square() - (self.log_std + _HALF_LOG_TAU)
        return (
            torch.where(counted, logp, 0.0).sum(1),
            torch.where(counted, entropy, 0.0).sum(1),
            value,
        )

    def mean(self, observation: Observation) -> Tensor:
        """The most likely actions [N, *shape]."""
        return self._net(0, self._join(observation)).reshape(-1, *self._shape)

    def _counted(self, executed: Tensor) -> Tensor:
        """Which components [N, A] belong to the first `executed` [N] actions of their chunk."""
        action_of = torch.arange(len(self.log_std)) // self._components
        return action_of < executed.unsqueeze(1)

    def _logp(self, mean: Tensor, action: Tensor) -> Tensor:
        scaled = (action - mean) * (-self.log_std).exp()
        constant = self.log_std.sum() + mean.shape[1] * _HALF_LOG_TAU
        return -0.5 * scaled.square().sum(dim=1) - constant


class CategoricalModule(_TwoNets):
    """`CategoricalActorCritic` in torch; actions are choices [N] int64 from 0."""

    def act(
        self, observation: Observation, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled actions, their log-probs and the values of the observations."""
        x = self._join(observation)
        logits, value = self._net(0, x), self._net(1, x).squeeze(1)
        logp = torch.log_softmax(logits, dim=1)
        # Gumbel's maximum: an argmax of noisy logits is a sample of their softmax.
        waits = rng.standard_exponential(logits.shape, dtype=np.float32)
        noise = torch.from_numpy(-np.log(np.maximum(waits, np.finfo(np.float32).tiny)))
        action = (logits + noise).argmax(dim=1)
        return action, _chosen(logp, action), value

    def evaluate(self, observation: Observation, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values, [N] each."""
        x = self._join(observation)
        logp = torch.log_softmax(self._net(0, x), dim=1)
        entropy = -(logp.exp() * logp).sum(dim=1)
        return _chosen(logp, action), entropy, self._net(1, x).squeeze(1)

    def mean(self, observation: Observation) -> Tensor:
        """The most likely choices [N]."""
        return self._net(0, self._join(observation)).argmax(dim=1)


def as_module(policy: Any) -> nn.Module:
    """The torch module of a policy: a built-in record's, or the module that it is itself.

    Raises BadInput for what is no policy, and for a module whose state is not all in parameters.
    """
    module = policy.to_module() if hasattr(policy, "to_module") else policy
    who = type(policy).__name__
    if not isinstance(module, nn.Module):
        raise BadInput(
            who,
            "is no policy",
            expected="a built-in policy or a torch.nn.Module",
            got=repr(type(module)),
        )
    wanted = ("act", "evaluate_sequence" if state_shape(module) else "evaluate", "value")
    missing = [name for name in wanted if not hasattr(module, name)]
    if missing:
        raise BadInput(who, f"has no method {', '.join(missing)}", expected=", ".join(wanted))
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise BadInput(who, f"parameter {name}", expected="float32", got=parameter.dtype)
    for name, part in module.named_modules():
        if getattr(part, "track_running_stats", False) and hasattr(part, "running_mean"):
            raise BadInput(
                who,
                f"{name} ({type(part).__name__}) keeps running statistics outside its parameters",
                fix="use LayerNorm, or track_running_stats=False",
            )
    return module


def check_chunks(module: nn.Module) -> None:
    """BadInput for a module whose log-probs cannot leave out what a chunk did not execute."""
    name, needed = ("evaluate_sequence", 5) if state_shape(module) else ("evaluate", 3)
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(places) < needed and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
        raise BadInput(
            type(module).__name__,
            f"{name} has no argument `executed`, and actions come in chunks",
            expected="log-probs and entropies of the first `executed` [N] actions of each chunk",
            got=f"{name}({', '.join(p.name for p in parameters)})",
        )


def flatten(module: nn.Module, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Make all parameters views of one flat vector [P], in the order of `named_parameters`.

    With `gradient` their gradients become views of a second one, into which autograd adds; else
    none is computed. Parameters that were frozen stay so.
    """
    parameters = list(module.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    flat = torch.zeros(count, dtype=torch.float32)
    slope = torch.zeros(count, dtype=torch.float32) if gradient else None
    start = 0
    for parameter in parameters:
        at = slice(start, start + parameter.numel())
        flat[at] = parameter.detach().reshape(-1)
        parameter.data = flat[at].view(parameter.shape)
        if slope is None:
            parameter.requires_grad_(False)
        else:
            parameter.grad = slope[at].view(parameter.shape)
        start = at.stop
    return flat, slope


def policy_calls(module: nn.Module) -> PolicyModule:
    """The module seen as the calls that `as_module` has checked."""
    return cast("PolicyModule", module)


def _chosen(logp: Tensor, action: Tensor) -> Tensor:
    return logp.gather(1, action.reshape(-1, 1)).squeeze(1)
