"""`ActorCritic` in torch, with and without a recurrent core.

Axes: N entries, T time, B slots, C actions of a chunk, F features. Observations map names to
tensors [N, *shape] as the policy sees them (floats normalised where asked for, bytes raw).

A recurrent policy has `state_shape`, from names to shapes [*shape] of one slot's float32 memory,
which is 0 at an episode's start. Its calls take and give the memory of N slots, name to
[N, *shape]; `evaluate_sequence` replays whole sequences with gradients through time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from rlinf_async.models.actor_critic import ActorCritic
from rlinf_async.models.distributions import ActionHead
from rlinf_async.models.encoders import ObservationEncoder, orthogonal
from rlinf_async.models.policies import ACTOR_GAIN, HIDDEN_GAIN
from rlinf_async.models.recurrent import GatedRecurrentUnit

Observation = Mapping[str, Tensor]
State = Mapping[str, Tensor]


class Trunk(nn.Module):
    """Encoders and hidden layers: observations to [N, F]."""

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(
            policy.spaces.observation,
            text=policy.text,
            embedding=policy.embedding,
            image_channels=policy.image_channels,
            image_features=policy.image_features,
        )
        self.features = self.encoder.features
        layers: list[nn.Module] = []
        for units in policy.hidden:
            layers.append(orthogonal(nn.Linear(self.features, units), HIDDEN_GAIN))
            layers.append(nn.Tanh() if policy.activation == "tanh" else nn.ReLU())
            self.features = units
        self.layers = nn.Sequential(*layers)

    def forward(self, observation: Observation) -> Tensor:
        """Features [N, F]."""
        features: Tensor = self.layers(self.encoder(observation))
        return features


class Outputs(nn.Module):
    """The last layers: features [N, F] of actor and critic to a distribution and a value."""

    def __init__(self, policy: ActorCritic, features: int) -> None:
        super().__init__()
        self.head = ActionHead(
            policy.spaces.action,
            chunk=policy.spaces.chunk,
            squash=policy.squash,
            log_std=policy.log_std,
        )
        self.actor = orthogonal(nn.Linear(features, self.head.outputs), ACTOR_GAIN)
        self.critic = orthogonal(nn.Linear(features, 1), 1.0)

    def act(self, actor: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Sampled actions [N, *shape] and their log-probs [N]."""
        output = self.actor(actor)
        action = self.head.sample(output, rng)
        return action, self.head.logp(output, action)

    def evaluate(
        self, actor: Tensor, action: Tensor, executed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the first `executed` [N] actions of each chunk."""
        output = self.actor(actor)
        return (
            self.head.logp(output, action, executed),
            self.head.entropy(output, action, executed),
        )

    def mode(self, actor: Tensor) -> Tensor:
        """The most likely actions [N, *shape]."""
        return self.head.mode(self.actor(actor))

    def value(self, critic: Tensor) -> Tensor:
        """Values [N]."""
        value: Tensor = self.critic(critic)
        return value.squeeze(1)


class FeedForward(nn.Module):
    """`ActorCritic` without memory; see `modules.PolicyModule`."""

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        trunks = [Trunk(policy) for _ in range(1 if policy.is_shared else 2)]
        self.trunks = nn.ModuleList(trunks)
        self.outputs = Outputs(policy, trunks[0].features)

    def act(
        self, observation: Observation, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled actions [N, *shape], their log-probs and the values of the observations, [N]."""
        actor, critic = self._features(observation)
        action, logp = self.outputs.act(actor, rng)
        return action, logp, self.outputs.value(critic)

    def evaluate(
        self, observation: Observation, action: Tensor, executed: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values, [N] each.

        `executed` [N] int64: so many actions of each chunk count; None: all.
        """
        actor, critic = self._features(observation)
        logp, entropy = self.outputs.evaluate(actor, action, executed)
        return logp, entropy, self.outputs.value(critic)

    def value(self, observation: Observation) -> Tensor:
        """Values [N]."""
        return self.outputs.value(self.trunks[-1](observation))

    def mean(self, observation: Observation) -> Tensor:
        """The most likely actions [N, *shape] in the row's dtype."""
        return self.outputs.mode(self.trunks[0](observation))

    def _features(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Features [N, F] of actor and critic."""
        features = [trunk(observation) for trunk in self.trunks]
        return features[0], features[-1]


class Recurrent(nn.Module):
    """`ActorCritic` with a recurrent core between the hidden layers and the outputs."""

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.state_shape = policy.state_shape
        trunks = [Trunk(policy) for _ in self.state_shape]
        units = policy.recurrent_units
        self.trunks = nn.ModuleList(trunks)
        self.cores = nn.ModuleList(GatedRecurrentUnit(each.features, units) for each in trunks)
        self.outputs = Outputs(policy, units)

    def act(
        self, observation: Observation, rng: np.random.Generator, state: State
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Sampled actions [N, *shape], their log-probs and values [N], and the next state."""
        following = self._step(observation, state)
        actor, critic = _first_and_last(following)
        action, logp = self.outputs.act(actor, rng)
        return action, logp, self.outputs.value(critic), following

    def value(self, observation: Observation, state: State) -> Tensor:
        """Values [N] of observations in the state before them, which is left as it is."""
        *_, name = self.state_shape
        features = self.trunks[-1](observation)
        return self.outputs.value(_core(self.cores[-1]).step(features, state[name]))

    def mean(self, observation: Observation, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """The most likely actions [N, *shape] in the row's dtype, and the next state."""
        following = self._step(observation, state)
        return self.outputs.mode(_first_and_last(following)[0]), following

    def evaluate_sequence(
        self,
        observation_TB: Observation,
        action_TB: Tensor,
        state_B: State,
        first_TB: Tensor,
        executed_TB: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values, [T, B] each, with gradients through time.

        Args:
            observation_TB: name to [T, B, *shape].
            action_TB: [T, B, *shape] as stored.
            state_B: name to [B, *shape], the state before the first entry.
            first_TB: bool; the entry begins an episode, so the state before it is 0.
            executed_TB: int64, so many actions of each chunk count; None: all.
        """
        entries = {name: rows.flatten(0, 1) for name, rows in observation_TB.items()}
        states: dict[str, Tensor] = {}
        for name, trunk, core in zip(self.state_shape, self.trunks, self.cores, strict=True):
            features_TBF = trunk(entries).reshape(*first_TB.shape, -1)
            states_TBH = _core(core).sequence(features_TBF, state_B[name], first_TB)
            states[name] = states_TBH.flatten(0, 1)
        actor, critic = _first_and_last(states)
        executed = None if executed_TB is None else executed_TB.flatten()
        logp, entropy = self.outputs.evaluate(actor, action_TB.flatten(0, 1), executed)
        results = (logp, entropy, self.outputs.value(critic))
        logp_TB, entropy_TB, value_TB = (each.reshape(first_TB.shape) for each in results)
        return logp_TB, entropy_TB, value_TB

    def _step(self, observation: Observation, state: State) -> dict[str, Tensor]:
        parts = zip(self.state_shape, self.trunks, self.cores, strict=True)
        return {
            name: _core(core).step(trunk(observation), state[name]) for name, trunk, core in parts
        }


def _first_and_last(states: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What actor and critic read: the first and the last of the cores' states."""
    each = list(states.values())
    return each[0], each[-1]


def _core(module: nn.Module) -> GatedRecurrentUnit:
    assert isinstance(module, GatedRecurrentUnit)
    return module
