"""Off-policy algorithms and replay as records: what to learn, not with what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Recorded episodes that learning starts from or mixes in.

    `path` is a recording's folder, or an HDF5 file in Minari's format (or D4RL's flat arrays).
    """

    path: str
    share: float = 0.5
    """Part of each sample that comes from them."""
    episodes: int | None = None
    """The first so many; None: all."""

    def __post_init__(self) -> None:
        _within("Demonstrations", share=(self.share, 0.0, 1.0))
        if self.episodes is not None and self.episodes < 1:
            raise BadInput("Demonstrations", "episodes", expected=">= 1", got=self.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What is remembered and how it is sampled.

    `prioritised` is the exponent alpha of Schaul et al. (2016); None samples uniformly.
    """

    capacity: int = 1_000_000
    """Entries in all, one for each step and one more for each end of an episode; split evenly over
    the slots."""
    n_step: int = 1
    """Rewards added up before the target bootstraps."""
    prioritised: float | None = None
    beta: float = 0.4
    """Exponent of the weights that correct for priorities."""
    demonstrations: Demonstrations | None = None
    online: bool = True
    """Whether collected steps are stored; False learns from the demonstrations alone."""
    saved: bool = False
    """Whether the final checkpoint holds all that is remembered. A run that begins with such a
    checkpoint (`--init-from`) and has `saved` too begins with what it remembers."""

    def __post_init__(self) -> None:
        for name in ("capacity", "n_step"):
            if getattr(self, name) < 1:
                raise BadInput("Replay", name, expected=">= 1", got=getattr(self, name))
        if self.prioritised is not None:
            _within("Replay", prioritised=(self.prioritised, 0.0, 1.0))
        elif self.beta != 0.4:
            raise BadInput("Replay", "beta is used with `prioritised` only", got=self.beta)
        _within("Replay", beta=(self.beta, 0.0, 1.0))
        if not self.online and self.demonstrations is None:
            raise BadInput("Replay", "online=False needs demonstrations")
        if not self.online and self.prioritised is not None:
            raise BadInput("Replay", "priorities are of collected steps, which are not stored")
        if not self.online and self.saved:
            raise BadInput("Replay", "saved keeps collected steps, which are not stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class SAC:
    """Soft actor-critic (Haarnoja et al., 2018, with tuned temperature).

    y = R + gamma^h (1 - term) (min_j Qt_j(s', a') - alpha log pi(a'|s')); the actor minimises
    alpha log pi - min_j Q_j. With `subset` the target's minimum is over a random subset drawn once
    an update, and the actor uses the mean of all (REDQ, Chen et al., 2021). With `layer_norm` and
    demonstrations it is RLPD (Ball et al., 2023).
    """

    gamma: float = 0.99
    """Discount of one simulator step."""
    tau: float = 0.005
    """Part of the critics that goes into the targets after each update."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of a critic."""
    critics: int = 2
    subset: int | None = None
    layer_norm: bool = False
    """Normalise each hidden layer of the critics before its activation."""
    actor_every: int = 1
    """Critic updates to one update of actor and temperature."""
    temperature: float = 1.0
    """Initial alpha."""
    target_entropy: float | None = None
    """H; None: minus the number of action components."""
    tune_temperature: bool = True
    """False keeps alpha as it is."""

    def __post_init__(self) -> None:
        _check_common(self)
        _at_least("SAC", 1, critics=self.critics, actor_every=self.actor_every)
        if self.subset is not None and not 1 <= self.subset <= self.critics:
            raise BadInput("SAC", "subset", expected=f"1 to {self.critics}", got=self.subset)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise BadInput("SAC", "temperature", expected="> 0", got=self.temperature)
        if not self.tune_temperature and self.target_entropy is not None:
            raise BadInput("SAC", "target_entropy is not used without tune_temperature")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossQ:
    """CrossQ (Bhatt et al., 2024): SAC without target networks, critics with batch normalisation.

    One training-mode pass of the critics over [(s, a); (s', a')] gives both the predictions and the
    targets, whose half has no gradient. The actor's update uses the running statistics.
    """

    gamma: float = 0.99
    hidden: tuple[int, ...] = (512, 512)
    critics: int = 2
    momentum: float = 0.01
    """Part of a batch's statistics that goes into the running ones."""
    actor_every: int = 3
    temperature: float = 1.0
    target_entropy: float | None = None

    def __post_init__(self) -> None:
        _check_common(self)
        _at_least("CrossQ", 1, critics=self.critics, actor_every=self.actor_every)
        _within("CrossQ", momentum=(self.momentum, 0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3:
    """Twin delayed deterministic policy gradient (Fujimoto et al., 2018); needs `Deterministic`.

    a' = clip(mu_t(s') + clip(eps, +-c), low, high), in action units; actor and all targets are
    updated with every d-th critic update.
    """

    gamma: float = 0.99
    tau: float = 0.005
    hidden: tuple[int, ...] = (256, 256)
    target_noise: float = 0.2
    """Deviation of eps."""
    noise_clip: float = 0.5
    """c."""
    actor_every: int = 2
    """d."""

    def __post_init__(self) -> None:
        _check_common(self)
        _at_least("TD3", 1, actor_every=self.actor_every)
        _at_least("TD3", 0.0, target_noise=self.target_noise, noise_clip=self.noise_clip)

    @property
    def critics(self) -> int:
        """Always two."""
        return 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IQL:
    """Implicit Q-learning (Kostrikov et al., 2022).

    L_V = |tau - 1(u < 0)| u^2 with u = min Qt(s, a) - V(s); Q's target is r + gamma (1 - term)
    V(s'); the actor maximises min(exp(beta u), 100) log pi(a|s).
    """

    gamma: float = 0.99
    tau: float = 0.005
    """Part of the critics that goes into the targets after each update."""
    hidden: tuple[int, ...] = (256, 256)
    expectile: float = 0.7
    """The tau of L_V."""
    beta: float = 3.0
    """How much better actions weigh more."""
    weight_cap: float = 100.0

    def __post_init__(self) -> None:
        _check_common(self)
        _within("IQL", expectile=(self.expectile, 0.0, 1.0))
        _at_least("IQL", 0.0, beta=self.beta, weight_cap=self.weight_cap)

    @property
    def critics(self) -> int:
        """Always two."""
        return 2

    @property
    def actor_every(self) -> int:
        """Actor and critics are updated together."""
        return 1


OffPolicy = SAC | CrossQ | TD3 | IQL


def _check_common(record: Any) -> None:
    who = type(record).__name__
    object.__setattr__(record, "hidden", tuple(record.hidden))
    if not record.hidden or not all(isinstance(n, int) and n >= 1 for n in record.hidden):
        raise BadInput(who, "hidden", expected="at least one layer of units", got=record.hidden)
    limits = {"gamma": (record.gamma, 0.0, 1.0)}
    if hasattr(record, "tau"):
        limits["tau"] = (record.tau, 0.0, 1.0)
    _within(who, **limits)


def _within(who: str, **limits: tuple[float, float, float]) -> None:
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise BadInput(who, name, expected=f"{low:g} to {high:g}", got=value)


def _at_least(who: str, low: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= low:
            raise BadInput(who, name, expected=f"at least {low:g}", got=value)
