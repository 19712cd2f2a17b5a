"""Built-in actor-critic policies: light records that say what to compute, not with what.

Both have an actor MLP and a critic MLP of the same hidden sizes and no shared weights. The record
imports no torch: `to_kernel` gives the numpy arithmetic, `to_module` the torch module. Both read
the same flat float32 vector of P parameters, in the order of `parameter_shapes()`:

    hidden.0    [2, D + 1, H0]      [0] is the actor's layer, [1] the critic's
    hidden.i    [2, H(i-1) + 1, Hi]
    actor       [H(last) + 1, A]    action mean (Gaussian) or logits (categorical)
    critic      [H(last) + 1, 1]
    log_std     [A]                 Gaussian only; one per action component, not state dependent

D is the length of the observations concatenated in the order of `spaces.observation`. Every matrix
is [inputs + 1, outputs] in C order and its last row is the bias: y = x @ w[:-1] + w[-1]. A column
of ones behind the inputs then gives bias and bias gradient without a pass of their own, and the
pair of nets goes through one batched product.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces

if TYPE_CHECKING:
    from rlinf_async.models.mlp_kernel import MlpPair

Activation = Literal["tanh", "relu"]

HIDDEN_GAIN = math.sqrt(2.0)
_ANY_ACTION = "use ActorCritic, which takes every kind of action"
ACTOR_GAIN = 0.01
"""A nearly zero actor head makes the first actions independent of the observation."""


@dataclass(frozen=True)
class GaussianActorCritic:
    """Diagonal Gaussian policy for continuous actions, with a state-value critic.

    The action mean is the actor's output, the standard deviation exp(log_std), learned and the
    same in every state. Samples are unbounded: the environment clips, the row stores the sample.

    Raises BadInput for observations that are no float vectors, and for discrete actions.
    """

    spaces: Spaces
    _: KW_ONLY
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of actor and critic each."""
    activation: Activation = "tanh"
    log_std: float = 0.0
    """Initial logarithm of the standard deviation of every action component."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        who = type(self).__name__
        _check_nets(who, self.spaces, self.hidden, self.activation)
        kind = self.spaces.action.kind
        if kind != "continuous":
            raise BadInput(
                who,
                f"the actions are {kind.replace('_', '-')}",
                expected="continuous actions",
                got=f"shape {self.spaces.action.shape}",
                fix="use CategoricalActorCritic" if kind == "discrete" else _ANY_ACTION,
            )
        if not math.isfinite(self.log_std):
            raise BadInput(who, "log_std", expected="a finite number", got=self.log_std)

    @property
    def observation_size(self) -> int:
        """D, the length of all observations concatenated."""
        return _observation_size(self.spaces)

    @property
    def output_size(self) -> int:
        """A, the number of action components."""
        return math.prod(self.spaces.action.shape)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each part of the flat vector, in its order."""
        shapes = _net_shapes(self.observation_size, self.hidden, self.output_size)
        return {**shapes, "log_std": (self.output_size,)}

    def initial_parameters(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Orthogonal weights (gain sqrt(2), 0.01 for actions, 1 for values), zero biases; [P]."""
        log_std = np.full(self.output_size, self.log_std, dtype=np.float32)
        return np.concatenate([_initial_nets(self.parameter_shapes(), rng), log_std])

    def to_module(self) -> Any:
        """The same policy as a torch module with `act`, `evaluate` and `value`."""
        from rlinf_async.models.modules import GaussianModule

        return GaussianModule(self)

    def to_kernel(self) -> MlpPair:
        """The two nets in numpy, with analytic gradients."""
        from rlinf_async.models.mlp_kernel import MlpPair

        return MlpPair(self)


@dataclass(frozen=True)
class CategoricalActorCritic:
    """Softmax policy for discrete actions, with a state-value critic.

    Raises BadInput for observations that are no float vectors, and for continuous actions.
    """

    spaces: Spaces
    _: KW_ONLY
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of actor and critic each."""
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        who = type(self).__name__
        _check_nets(who, self.spaces, self.hidden, self.activation)
        action = self.spaces.action
        if action.kind != "discrete":
            raise BadInput(
                who,
                f"the actions are {action.kind.replace('_', '-')}",
                expected="discrete actions",
                got=f"shape {action.shape}",
                fix="use GaussianActorCritic" if action.kind == "continuous" else _ANY_ACTION,
            )
        if action.shape != () or action.count < 1:
            raise BadInput(
                who,
                "the action is not one choice",
                expected="shape () and at least one choice",
                got=f"shape {action.shape}, {action.count} choices",
            )

    @property
    def observation_size(self) -> int:
        """D, the length of all observations concatenated."""
        return _observation_size(self.spaces)

    @property
    def output_size(self) -> int:
        """A, the number of choices."""
        return self.spaces.action.count

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each part of the flat vector, in its order."""
        return _net_shapes(self.observation_size, self.hidden, self.output_size)

    def initial_parameters(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Orthogonal weights (gain sqrt(2), 0.01 for logits, 1 for values), zero biases; [P]."""
        return _initial_nets(self.parameter_shapes(), rng)

    def to_module(self) -> Any:
        """The same policy as a torch module with `act`, `evaluate` and `value`."""
        from rlinf_async.models.modules import CategoricalModule

        return CategoricalModule(self)

    def to_kernel(self) -> MlpPair:
        """The two nets in numpy, with analytic gradients."""
        from rlinf_async.models.mlp_kernel import MlpPair

        return MlpPair(self)


BuiltinPolicy = GaussianActorCritic | CategoricalActorCritic


def parameter_views(
    policy: BuiltinPolicy, flat: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    """Views of a flat [P] vector by name; BadInput where its size is not this policy's."""
    shapes = policy.parameter_shapes()
    size = sum(math.prod(shape) for shape in shapes.values())
    if flat.shape != (size,):
        raise BadInput(
            type(policy).__name__,
            "parameters of another shape",
            expected=f"[{size}] for {shapes}",
            got=list(flat.shape),
            fix="use the same observations, actions and hidden sizes as when they were saved",
        )
    views, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        views[name] = flat[start:stop].reshape(shape)
        start = stop
    return views


def check_vectors(who: str, spaces: Spaces, *, fix: str = "") -> None:
    """BadInput where an observation is no vector of floats."""
    for spec in spaces.observation:
        if len(spec.shape) != 1 or not spec.dtype.startswith("float"):
            raise BadInput(
                who,
                f"observation {spec.name!r} is no vector of floats",
                expected="shape [n], float32",
                got=f"shape {list(spec.shape)}, {spec.dtype}",
                fix=fix,
            )


def _check_nets(who: str, spaces: Spaces, hidden: tuple[int, ...], activation: str) -> None:
    check_vectors(who, spaces, fix="write a torch.nn.Module policy for such observations")
    if not spaces.observation or _observation_size(spaces) < 1:
        raise BadInput(who, "the observations are empty", expected="at least one number")
    if not hidden or not all(isinstance(units, int) and units >= 1 for units in hidden):
        raise BadInput(
            who, "hidden", expected="at least one layer of at least one unit", got=hidden
        )
    if activation not in ("tanh", "relu"):
        raise BadInput(who, "activation", expected="'tanh' or 'relu'", got=repr(activation))


def _observation_size(spaces: Spaces) -> int:
    return sum(math.prod(spec.shape) for spec in spaces.observation)


def _net_shapes(inputs: int, hidden: tuple[int, ...], outputs: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for index, units in enumerate(hidden):
        shapes[f"hidden.{index}"] = (2, inputs + 1, units)
        inputs = units
    shapes["actor"] = (inputs + 1, outputs)
    shapes["critic"] = (inputs + 1, 1)
    return shapes


def _initial_nets(
    shapes: dict[str, tuple[int, ...]], rng: np.random.Generator
) -> NDArray[np.float32]:
    parts: list[NDArray[np.float32]] = []
    for name, shape in shapes.items():
        if name == "log_std":
            continue
        gain = {"actor": ACTOR_GAIN, "critic": 1.0}.get(name, HIDDEN_GAIN)
        for _ in range(shape[0] if len(shape) == 3 else 1):
            weight = np.zeros(shape[-2:], dtype=np.float32)
            weight[:-1] = gain * _orthogonal(shape[-2] - 1, shape[-1], rng)
            parts.append(weight.ravel())
    return np.concatenate(parts)


def _orthogonal(rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A random matrix with orthonormal rows or columns (QR of a Gaussian one, signs fixed)."""
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.asarray(q if rows >= columns else q.T)
