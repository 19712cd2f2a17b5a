"""`ActorCritic`: one built-in policy for every kind of observation and action.

The record says what to compute and imports no torch; `to_module` gives the torch module. What each
observation and action becomes follows from `Spaces` (see `observations` and `distributions`):

    observations -> encoders, side by side -> hidden layers (-> recurrent core) -> action and value
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ActionSpec, Spaces
from rlinf_async.models.observations import check_observations, kind_of
from rlinf_async.models.policies import Activation


@dataclass(frozen=True)
class ActorCritic:
    """An action distribution and a state value for any `Spaces`, with or without memory.

    Continuous actions are Gaussian with learned deviations that are the same in every state,
    choices categorical, bits Bernoulli; mixed actions have one of these for each part. With chunks
    the policy gives all C actions at once, each with its own outputs.

    Raises BadInput for images that are too small, and for options that cannot be right.
    """

    spaces: Spaces
    _: KW_ONLY
    hidden: tuple[int, ...] = (256,)
    """Units of each hidden layer behind the encoders; () is none."""
    activation: Activation = "tanh"
    """Of the hidden layers; images always have ReLU."""
    shared: bool | None = None
    """Whether actor and critic share encoders, hidden layers and core; None: where there are images
    or a core."""
    recurrent: Literal["gru"] | None = None
    """The core that remembers; its state belongs to the episode."""
    recurrent_units: int = 128
    """Length of the core's state."""
    squash: bool = False
    """Continuous actions are a tanh of normals scaled to the bounds; the row stores them before the
    tanh. Else normals that the environment clips to the bounds."""
    log_std: float = 0.0
    """Initial logarithm of the standard deviation of every continuous component."""
    text: tuple[str, ...] | None = None
    """Names of the byte vectors that are text; None: all of them are."""
    embedding: int = 32
    """Length of the embedding of a choice, and of a text."""
    image_channels: int = 32
    """Channels of an image's first layer; later ones have twice as many."""
    image_features: int = 256
    """Features that one image becomes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if self.text is not None:
            object.__setattr__(self, "text", tuple(self.text))
        who = type(self).__name__
        check_observations(self.spaces.observation, self.text, who=who)
        _check_action(who, self.spaces, squash=self.squash)
        for name in ("recurrent_units", "embedding", "image_channels", "image_features"):
            _check_count(who, name, getattr(self, name))
        for units in self.hidden:
            _check_count(who, "hidden", units)
        if self.activation not in ("tanh", "relu"):
            raise BadInput(who, "activation", expected="'tanh' or 'relu'", got=self.activation)
        if self.recurrent not in (None, "gru"):
            raise BadInput(who, "recurrent", expected="None or 'gru'", got=self.recurrent)
        if not math.isfinite(self.log_std):
            raise BadInput(who, "log_std", expected="a finite number", got=self.log_std)

    @property
    def is_shared(self) -> bool:
        """`shared`, decided."""
        if self.shared is not None:
            return self.shared
        kinds = [kind_of(spec, self.text) for spec in self.spaces.observation]
        return self.recurrent is not None or "image" in kinds

    @property
    def state_shape(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of one slot's memory, float32; empty without a recurrent core."""
        if self.recurrent is None:
            return {}
        names = ("core",) if self.is_shared else ("actor", "critic")
        return dict.fromkeys(names, (self.recurrent_units,))

    def to_module(self) -> Any:
        """The policy as a torch module, newly initialised."""
        from rlinf_async.models.actor_critic_modules import FeedForward, Recurrent

        return FeedForward(self) if self.recurrent is None else Recurrent(self)


def _check_count(who: str, name: str, count: Any) -> None:
    if not isinstance(count, int) or count < 1:
        raise BadInput(who, name, expected="a whole number of at least 1", got=count)


def _check_action(who: str, spaces: Spaces, *, squash: bool) -> None:
    action, chunk = spaces.action, spaces.chunk
    if chunk > 1 and action.shape[:1] != (chunk,):
        raise BadInput(
            who,
            f"actions of chunks of {chunk}",
            expected=f"shape [{chunk}, ...]",
            got=list(action.shape),
        )
    leaves = [part.spec for part in action.parts] if action.kind == "mixed" else [action]
    for leaf in leaves:
        if math.prod(leaf.shape) < 1 or not _has_choices(leaf):
            raise BadInput(who, "the action is empty", expected="a choice or a number", got=leaf)
    if squash and not any(leaf.kind == "continuous" for leaf in leaves):
        raise BadInput(
            who,
            "squash has nothing to squash",
            expected="continuous actions",
            got=action.kind,
            fix="leave squash out",
        )


def _has_choices(leaf: ActionSpec) -> bool:
    if leaf.kind == "discrete":
        return leaf.count >= 1
    return leaf.kind != "multi_discrete" or min(leaf.counts, default=0) >= 1
