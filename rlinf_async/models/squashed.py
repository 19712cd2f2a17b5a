"""Actors of off-policy algorithms: light records whose actions lie within bounds through a tanh.

A record imports no torch. All that acts, numpy here and torch in the learners, reads one flat
float32 vector, in the order of `parameter_shapes()`:

    hidden.i.weight [inputs, Hi], hidden.i.bias [Hi]
    output.weight   [H(last), O], output.bias [O]       O = 2A (mean, log deviation) or A
    uniform         [1]     1 while actions are drawn uniformly from the bounds, 0 afterwards

`uniform` is no weight: the learner sets it to 0 when enough random steps were collected, so that
every process that acts hears of it with the version that it acts with.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, Spaces
from rlinf_async.models.policies import check_vectors

if TYPE_CHECKING:
    from rlinf_async.models.squashed_acting import SquashedActor, SquashedChooser

Float32 = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""The log deviation is kept within these (Haarnoja et al., 2018, their code)."""


@dataclass(frozen=True)
class SquashedGaussian:
    """A Gaussian with deviations that depend on the state, before a tanh; for SAC and its kin.

    Raises BadInput for observations that are no float vectors, and for actions that are not
    continuous or have no finite bounds.
    """

    spaces: Spaces
    _: KW_ONLY
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, which have ReLU."""
    squash: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)

    @property
    def outputs(self) -> int:
        """Mean and log deviation of every action component."""
        return 2 * action_size(self.spaces)

    def parameter_shapes(self) -> Shapes:
        """Name and shape of each part of the flat vector, in its order."""
        return _shapes(self.spaces, self.hidden, self.outputs)

    def initial_parameters(self, rng: np.random.Generator) -> Float32:
        """Weights and biases uniform within 1 / sqrt(inputs); [P]."""
        return _initial(self.parameter_shapes(), rng)

    def noise_scale(self) -> Float32 | None:
        """None: its noise is its own deviation."""
        return None

    def to_actor(self, slots: int, *, normalize: bool) -> SquashedActor:
        """What acts for a cell."""
        from rlinf_async.models.squashed_acting import SquashedActor

        return SquashedActor(self, slots, normalize=normalize)

    def to_chooser(self, parameters: Float32) -> SquashedChooser:
        """What acts outside a run."""
        from rlinf_async.models.squashed_acting import SquashedChooser

        return SquashedChooser(self, parameters)


@dataclass(frozen=True)
class Deterministic:
    """One action for each state, with Gaussian noise while it collects; for TD3.

    Raises BadInput as `SquashedGaussian` does.
    """

    spaces: Spaces
    _: KW_ONLY
    hidden: tuple[int, ...] = (256, 256)
    exploration: float = 0.1
    """Deviation of the noise, in action units."""
    squash: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)
        if not 0 <= self.exploration < math.inf:
            raise BadInput("Deterministic", "exploration", expected=">= 0", got=self.exploration)

    @property
    def outputs(self) -> int:
        """One number for every action component, before its tanh."""
        return action_size(self.spaces)

    def parameter_shapes(self) -> Shapes:
        """Name and shape of each part of the flat vector, in its order."""
        return _shapes(self.spaces, self.hidden, self.outputs)

    def initial_parameters(self, rng: np.random.Generator) -> Float32:
        """Weights and biases uniform within 1 / sqrt(inputs); [P]."""
        return _initial(self.parameter_shapes(), rng)

    def noise_scale(self) -> Float32 | None:
        """Deviation of each component's noise [A] where the bounds are [-1, 1]."""
        return np.float32(self.exploration) / half_ranges(self.spaces.action)

    def to_actor(self, slots: int, *, normalize: bool) -> SquashedActor:
        """What acts for a cell."""
        from rlinf_async.models.squashed_acting import SquashedActor

        return SquashedActor(self, slots, normalize=normalize)

    def to_chooser(self, parameters: Float32) -> SquashedChooser:
        """What acts outside a run."""
        from rlinf_async.models.squashed_acting import SquashedChooser

        return SquashedChooser(self, parameters)


SquashedPolicy = SquashedGaussian | Deterministic


def action_size(spaces: Spaces) -> int:
    """A, the action's components; with chunks those of all C sub-steps."""
    return math.prod(spaces.action.shape)


def observation_size(spaces: Spaces) -> int:
    """D, the length of all observations side by side."""
    return sum(math.prod(spec.shape) for spec in spaces.observation)


def half_ranges(action: ActionSpec) -> Float32:
    """Half the distance between the bounds of each action component [A]."""
    return np.asarray((np.array(action.high) - np.array(action.low)) / 2.0, np.float32)


def views_of(shapes: Shapes, flat: Any) -> dict[str, Any]:
    """Views of a flat [P] array or tensor by name."""
    views, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        views[name] = flat[start:stop].reshape(shape)
        start = stop
    return views


def _shapes(spaces: Spaces, hidden: tuple[int, ...], outputs: int) -> Shapes:
    shapes: Shapes = {}
    inputs = observation_size(spaces)
    for index, units in enumerate(hidden):
        shapes[f"hidden.{index}.weight"] = (inputs, units)
        shapes[f"hidden.{index}.bias"] = (units,)
        inputs = units
    shapes["output.weight"] = (inputs, outputs)
    shapes["output.bias"] = (outputs,)
    shapes["uniform"] = (1,)
    return shapes


def _initial(shapes: Shapes, rng: np.random.Generator) -> Float32:
    parts, limit = [], 0.0
    for name, shape in shapes.items():
        if name.endswith("weight"):
            limit = 1.0 / math.sqrt(shape[0])
        part = np.ones(1) if name == "uniform" else rng.uniform(-limit, limit, shape)
        parts.append(part.ravel())
    return np.concatenate(parts).astype(np.float32)


def _check(policy: SquashedPolicy) -> None:
    who, spaces = type(policy).__name__, policy.spaces
    object.__setattr__(policy, "hidden", tuple(policy.hidden))
    check_vectors(who, spaces)
    if not policy.hidden or not all(isinstance(n, int) and n >= 1 for n in policy.hidden):
        raise BadInput(who, "hidden", expected="at least one layer of units", got=policy.hidden)
    action = spaces.action
    if action.kind != "continuous":
        raise BadInput(who, f"the actions are {action.kind}", expected="continuous actions")
    if not np.isfinite(half_ranges(action)).all():
        raise BadInput(
            who, "the actions have no finite bounds", got=f"{action.low} to {action.high}"
        )
