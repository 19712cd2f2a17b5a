"""A trained policy from its checkpoint folder, for use without the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_async.algorithms.batching import normalize_rows
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.optimizers import AVERAGE
from rlinf_async.envs.actions import ActionDecoder
from rlinf_async.envs.squash import SquashedActions
from rlinf_async.errors import BadInput
from rlinf_async.execution.checkpoint import Checkpoint, read_checkpoint
from rlinf_async.execution.references import rebuild
from rlinf_async.execution.spaces import ActionSpec, Spaces

Array = NDArray[Any]


def load_policy(folder: str | Path, *, averaged: bool = False) -> LoadedPolicy:
    """The policy in a checkpoint folder, ready to act.

    ```python
    policy = rlinf_async.load_policy("runs/.../checkpoint")
    action = policy.act(observation)
    ```

    Built-in policies need numpy only; others the class they were trained with, and torch.

    Args:
        averaged: act with the moving average of the parameters, which the optimizer kept.

    Raises:
        BadInput: no complete checkpoint is there, its policy's class cannot be imported, or it
            holds no average.
    """
    checkpoint = read_checkpoint(Path(folder))
    parameters = _average_of(checkpoint, folder) if averaged else checkpoint.parameters
    spaces = Spaces.from_json(checkpoint.policy["spaces"])
    policy = rebuild(checkpoint.policy["policy"], where=f"checkpoint {folder}")()
    statistics = None
    if checkpoint.policy["normalize_observations"]:
        statistics = Statistics.from_row(checkpoint.statistics, spaces)
    return LoadedPolicy(policy, spaces, parameters, statistics, checkpoint.manifest)


def _average_of(checkpoint: Checkpoint, folder: str | Path) -> NDArray[np.float32]:
    if AVERAGE not in checkpoint.optimizer:
        raise BadInput(
            f"checkpoint {folder}",
            "holds no average of the parameters",
            fix="train with Adam(average_decay=...)",
        )
    average: NDArray[np.float32] = checkpoint.optimizer[AVERAGE]
    return average


class LoadedPolicy:
    """Acts for one observation or for a batch of them; holds no environment.

    A policy with memory remembers what it was given since the last `reset`, for the same number of
    environments each time.
    """

    def __init__(
        self,
        policy: Any,
        spaces: Spaces,
        parameters: NDArray[np.float32],
        statistics: Statistics | None,
        manifest: Mapping[str, Any],
    ) -> None:
        self.spaces = spaces
        self.manifest = manifest
        """What the checkpoint says of the run that it came from."""
        self._statistics = statistics
        self._rng = np.random.default_rng()
        self._outputs = _outputs_of(policy, spaces, parameters)
        squash = getattr(policy, "squash", False) is True
        self._squash = SquashedActions(_one_step(spaces)) if squash else None

    def reset(self, finished: NDArray[np.bool_] | None = None) -> None:
        """Episodes begin: a policy with memory forgets, one without does nothing.

        `finished` [N] bool are the environments that begin one; None: all, of any number.
        """
        if hasattr(self._outputs, "reset"):
            self._outputs.reset(finished)

    def seed(self, seed: int) -> None:
        """Make sampled actions repeatable."""
        self._rng = np.random.default_rng(seed)

    def act(self, observation: Any, *, deterministic: bool = True) -> Array | dict[str, Array]:
        """An action that the environment's `step` takes, or one for each of a batch.

        Args:
            observation: an array (where there is one observation) or a mapping of names to arrays,
                `[*shape]` for one environment or `[N, *shape]` for N.
            deterministic: the mode of the distribution, else a sample of it.

        Returns:
            Within the action's bounds and of its dtype: `[*shape]` or `[N, *shape]`. Of a mixed
            action a mapping from the names of its parts (`spaces.action.parts`) to such arrays.
        """
        named = observation if isinstance(observation, Mapping) else {self._only(): observation}
        first = self.spaces.observation[0]
        single = np.ndim(named[first.name]) == len(first.shape)
        action = self._to_env(self.choose(named, self._rng, deterministic=deterministic))
        if not single:
            return action
        if isinstance(action, dict):
            return {name: np.asarray(rows[0]) for name, rows in action.items()}
        return np.asarray(action[0])

    def choose(
        self, observation: Mapping[str, Any], rng: np.random.Generator, *, deterministic: bool
    ) -> Array:
        """Actions [N, *shape] as a segment stores them, for raw observations [N, *shape]."""
        rows = {
            spec.name: np.asarray(observation[spec.name], dtype=spec.dtype).reshape(-1, *spec.shape)
            for spec in self.spaces.observation
        }
        if self._statistics is not None:
            rows = normalize_rows(rows, self._statistics, normalized=True, joined=False)
        chosen: Array = self._outputs(rows, deterministic, rng)
        action = self.spaces.action
        return np.asarray(chosen.reshape(-1, *action.shape), dtype=action.row_dtype)

    def stretch(self, action: Array) -> Array:
        """Stored actions [N, *shape] as a cell's `step` takes them: a tanh's within the bounds."""
        return action if self._squash is None else self._squash(action)

    @property
    def remembers(self) -> bool:
        """Whether the policy has a memory of its episode, which `reset` clears."""
        return bool(getattr(self._outputs, "remembers", False))

    def _only(self) -> str:
        if len(self.spaces.observation) != 1:
            names = [spec.name for spec in self.spaces.observation]
            raise TypeError(f"this policy sees several observations: give a mapping of {names}")
        return self.spaces.observation[0].name

    def _to_env(self, action: Array) -> Array | dict[str, Array]:
        spec, action = self.spaces.action, self.stretch(action)
        if spec.kind != "mixed":
            return ActionDecoder(spec, len(action))(action)
        found, start = {}, 0
        rows = action.reshape(-1, action.shape[-1])  # with chunks, one row for each sub-step
        for part in spec.parts:
            own = rows[:, start : start + part.size].reshape(len(rows), *part.spec.shape)
            decoded = ActionDecoder(part.spec, len(rows))(own)
            found[part.name] = decoded.reshape(*action.shape[:-1], *part.spec.shape)
            start += part.size
        return found


def _one_step(spaces: Spaces) -> ActionSpec:
    """The action of one simulator step."""
    action = spaces.action
    if spaces.chunk == 1:
        return action
    size = math.prod(action.shape[1:])
    return replace(action, shape=action.shape[1:], low=action.low[:size], high=action.high[:size])


def _outputs_of(policy: Any, spaces: Spaces, parameters: NDArray[np.float32]) -> Any:
    """A function (rows, deterministic, rng) -> actions [N, ...] as a row stores them."""
    if hasattr(policy, "to_chooser"):
        return policy.to_chooser(parameters)
    if hasattr(policy, "to_kernel"):
        from rlinf_async.models.fused_acting import Chooser

        return Chooser(policy, spaces, parameters)
    from rlinf_async.models.torch_acting import TorchChooser

    return TorchChooser(policy, parameters)
