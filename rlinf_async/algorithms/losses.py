"""Losses as records. The arithmetic is in `losses_torch` and in the fused learner.

A switch that could have no effect is refused, never ignored.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rlinf_async.algorithms.schedules import Schedule
from rlinf_async.errors import BadInput

_DEFAULT_WEIGHT_CAP = 2.0

_Record = TypeVar("_Record", "PPOLoss", "PolicyGradientLoss", "GroupLoss", "CloningLoss")


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOLoss:
    """Proximal policy optimization (Schulman et al., 2017), with its usual switches.

    With r the ratio of new to old probability and A the advantage, the policy's loss is the mean of
    max(-A r, -A clip(r, 1 - clip, 1 + clip_high)).
    """

    clip: float | Schedule | None = 0.2
    """How far below 1 the ratio counts, and above it unless `clip_high` is given; None: any."""
    clip_high: float | None = None
    """How far above 1 the ratio counts; None: as far as `clip`."""
    dual_clip: float | None = None
    """c > 1: where A < 0 the loss is at most -c A (Ye et al., 2020)."""
    value_weight: float = 0.5
    """Weight of the value loss, which is the mean of (V - return)^2 (no factor 0.5)."""
    value_clip: float | None = None
    """Take the larger error of V and of V kept within this distance of the old value."""
    value_huber: float | None = None
    """Beyond this error the value loss grows in a straight line (Huber, 1964)."""
    entropy_weight: float | Schedule = 0.0
    log_ratio_clamp: float | None = None
    """Keep the log-ratio within +- this before its exponential."""
    correction: Literal["decoupled", "interpolate"] | None = None
    """For samples some versions old. `decoupled`: clip around the newest version's own
    probabilities and weigh each sample by their ratio to those that acted (Hilton et al., 2022).
    `interpolate`: the same with an approximation of them that needs no further forward pass."""
    weight_cap: float = _DEFAULT_WEIGHT_CAP
    """Largest weight of `correction`."""
    cap: Literal["truncate", "drop"] = "truncate"
    """What becomes of a weight above `weight_cap`: the cap, or 0."""
    normalize_advantages: Literal["batch", "minibatch", "none"] = "batch"
    """To mean 0 and deviation 1 over the whole batch, over each mini-batch, or not at all."""
    kl_weight: float = 0.0
    """Weight of the distance to the policy that the run began with."""
    kl: Literal["k2", "k3"] | None = None
    """Which estimate of that distance (Schulman, 2020); see `losses_torch.kl_terms`."""
    target_kl: float | None = None
    """End an update once a mini-batch's approximate KL is above 1.5 times this."""

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_choices()
        self._check_unused()

    @property
    def low(self) -> float:
        """Smallest ratio that counts, 0 where unclipped."""
        return 0.0 if self.clip is None else 1.0 - number(self.clip)

    @property
    def high(self) -> float:
        """Largest ratio that counts, infinity where unclipped."""
        if self.clip is None:
            return float("inf")
        return 1.0 + (number(self.clip) if self.clip_high is None else self.clip_high)

    def at(self, progress: float) -> PPOLoss:
        """The loss at `progress` in [0, 1] of the run, with numbers in place of its schedules."""
        return at_progress(self, progress)

    def _check_ranges(self) -> None:
        clip = self.clip
        if clip is not None and not callable(clip) and not 0 < clip <= 1:
            raise BadInput("PPOLoss", "clip", expected="in (0, 1] or None", got=clip)
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise BadInput("PPOLoss", "dual_clip", expected="> 1 or None", got=self.dual_clip)
        limits = ("clip_high", "value_clip", "value_huber", "log_ratio_clamp", "weight_cap")
        check_positive(self, *limits, "target_kl")
        check_weights(self, "value_weight", "entropy_weight", "kl_weight")

    def _check_choices(self) -> None:
        choices = {
            "correction": (None, "decoupled", "interpolate"),
            "cap": ("truncate", "drop"),
            "normalize_advantages": ("batch", "minibatch", "none"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise BadInput("PPOLoss", name, expected=f"one of {known}", got=getattr(self, name))
        check_kl(self)

    def _check_unused(self) -> None:
        if self.clip is None:
            for name in ("clip_high", "dual_clip"):
                if getattr(self, name) is not None:
                    raise BadInput("PPOLoss", f"{name} has no effect without clip", fix="give clip")
        capped = self.weight_cap != _DEFAULT_WEIGHT_CAP or self.cap != "truncate"
        if capped and self.correction is None:
            raise BadInput(
                "PPOLoss",
                "weight_cap and cap have no effect without a correction",
                fix="give correction='decoupled'",
            )
        check_value_switches(self, "value_clip", "value_huber")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradientLoss:
    """The mean of -A log pi, and a value loss: actor-critic without a ratio.

    With V-trace it is IMPALA's loss (Espeholt et al., 2018), with n-step returns A2C's (Mnih et
    al., 2016), with raw returns REINFORCE's (Williams, 1992).
    """

    value_weight: float = 0.5
    """Weight of the value loss, which is the mean of (V - return)^2 (no factor 0.5)."""
    value_huber: float | None = None
    """Beyond this error the value loss grows in a straight line (Huber, 1964)."""
    entropy_weight: float | Schedule = 0.0
    normalize_advantages: Literal["batch", "none"] = "none"
    """To mean 0 and deviation 1 over the whole batch, or not at all."""

    def __post_init__(self) -> None:
        check_positive(self, "value_huber")
        check_weights(self, "value_weight", "entropy_weight")
        if self.normalize_advantages not in ("batch", "none"):
            got = self.normalize_advantages
            known = "'batch' or 'none'"
            raise BadInput("PolicyGradientLoss", "normalize_advantages", expected=known, got=got)
        check_value_switches(self, "value_huber")

    def at(self, progress: float) -> PolicyGradientLoss:
        """The loss at `progress` in [0, 1] of the run, with numbers in place of its schedules."""
        return at_progress(self, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoss:
    """The clipped loss of methods that compare whole episodes: GRPO, Dr.GRPO, RLOO, DAPO.

    `grpo()`, `dr_grpo(...)` and `dapo()` make the usual ones. `losses_torch.group_loss` computes
    it; it has no value loss, since the group is the baseline.
    """

    clip: float = 0.2
    """How far below 1 the ratio counts, and above it unless `clip_high` is given."""
    clip_high: float | None = None
    """How far above 1 the ratio counts; None: as far as `clip`."""
    dual_clip: float | None = None
    """c > 1: where A < 0 the loss is at most -c A (Ye et al., 2020)."""
    log_ratio_clamp: float | None = None
    """Keep the log-ratio within +- this before its exponential."""
    reduction: Literal["mean", "sequence_mean", "fixed"] = "sequence_mean"
    """Over all entries alike; each episode alike; or by a fixed length: see `reductions`."""
    length_limit: int | None = None
    """L_max of `fixed`."""
    entropy_weight: float | Schedule = 0.0
    kl_weight: float = 0.0
    """Weight of the distance to a reference policy."""
    kl: Literal["k2", "k3"] | None = None
    """Which estimate of that distance (Schulman, 2020); see `losses_torch.kl_terms`."""
    engine_weight_cap: float | None = None
    """Weigh entries by the trainer's probability over the rollout engine's, up to this cap."""

    def __post_init__(self) -> None:
        if not 0 < self.clip <= 1:
            raise BadInput("GroupLoss", "clip", expected="in (0, 1]", got=self.clip)
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise BadInput("GroupLoss", "dual_clip", expected="> 1 or None", got=self.dual_clip)
        check_positive(self, "clip_high", "log_ratio_clamp", "engine_weight_cap", "length_limit")
        check_weights(self, "entropy_weight", "kl_weight")
        check_kl(self)
        if self.reduction not in ("mean", "sequence_mean", "fixed"):
            known = "mean, sequence_mean or fixed"
            raise BadInput("GroupLoss", "reduction", expected=known, got=self.reduction)
        if (self.reduction == "fixed") != (self.length_limit is not None):
            fix = "give both or neither"
            raise BadInput("GroupLoss", "length_limit belongs to reduction='fixed'", fix=fix)

    @property
    def low(self) -> float:
        """Smallest ratio that counts."""
        return 1.0 - self.clip

    @property
    def high(self) -> float:
        """Largest ratio that counts."""
        return 1.0 + (self.clip if self.clip_high is None else self.clip_high)

    def at(self, progress: float) -> GroupLoss:
        """The loss at `progress` in [0, 1] of the run, with numbers in place of its schedules."""
        return at_progress(self, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloningLoss:
    """Behaviour cloning (Pomerleau, 1991): the mean of -log pi of actions that are to be imitated.

    They come from recorded episodes, from batches whose actions an expert has replaced
    (`ExpertWorker.relabel`), or from both. With many batches kept it is DAgger (Ross et al., 2011).
    The value net is not trained.
    """

    demonstrations: str | None = None
    """Folder of a recording to imitate."""
    keep: int = 1
    """How many batches to imitate, this one and those before it; 0: demonstrations alone."""
    entropy_weight: float | Schedule = 0.0

    def __post_init__(self) -> None:
        check_weights(self, "entropy_weight")
        if self.keep < 0:
            raise BadInput("CloningLoss", "keep", expected=">= 0", got=self.keep)
        if self.keep == 0 and self.demonstrations is None:
            fix = "give demonstrations=FOLDER, or keep at least one batch"
            raise BadInput("CloningLoss", "there is nothing to imitate", fix=fix)

    def at(self, progress: float) -> CloningLoss:
        """The loss at `progress` in [0, 1] of the run, with numbers in place of its schedules."""
        return at_progress(self, progress)


def grpo(*, kl_weight: float = 0.04, **changes: Any) -> GroupLoss:
    """GRPO's loss (Shao et al., 2024, eq. 3): each episode counts alike, KL by k3."""
    kl = "k3" if kl_weight else None
    return GroupLoss(**{"kl_weight": kl_weight, "kl": kl, **changes})


def dr_grpo(*, length_limit: int, **changes: Any) -> GroupLoss:
    """Dr.GRPO's loss (Liu et al., 2025): divided by a fixed length, no KL."""
    return GroupLoss(reduction="fixed", length_limit=length_limit, **changes)


def dapo(**changes: Any) -> GroupLoss:
    """DAPO's loss (Yu et al., 2025): clip-higher, every entry counts alike, no KL."""
    return GroupLoss(**{"clip": 0.2, "clip_high": 0.28, "reduction": "mean", **changes})


BuiltinLoss = PPOLoss | PolicyGradientLoss | CloningLoss
"""What `pipe.train(loss=...)` takes beside a function of the user's own."""


def number(value: float | Schedule) -> float:
    """A switch that is a number by now; its schedule has to be resolved before (`at`)."""
    if callable(value):
        raise TypeError("a loss with schedules is used through its method at(progress)")
    return value


def at_progress(loss: _Record, progress: float) -> _Record:
    """The record with the values of its schedules at `progress`."""
    changing = {
        field.name: getattr(loss, field.name)(progress)
        for field in dataclasses.fields(loss)
        if callable(getattr(loss, field.name))
    }
    return dataclasses.replace(loss, **changing) if changing else loss


def check_positive(loss: Any, *names: str) -> None:
    """BadInput for a limit that is given and not above 0."""
    for name in names:
        limit = getattr(loss, name)
        if limit is not None and not limit > 0:
            raise BadInput(type(loss).__name__, name, expected="> 0", got=limit)


def check_weights(loss: Any, *names: str) -> None:
    """BadInput for a weight that is negative or not finite."""
    for name in names:
        weight = getattr(loss, name)
        if not callable(weight) and not 0 <= weight < math.inf:
            raise BadInput(type(loss).__name__, name, expected="a finite number >= 0", got=weight)


def check_value_switches(loss: Any, *names: str) -> None:
    """BadInput for a switch of the value loss that `value_weight=0` makes idle."""
    for name in names:
        if loss.value_weight == 0 and getattr(loss, name) is not None:
            raise BadInput(type(loss).__name__, f"{name} has no effect with value_weight=0")


def check_kl(loss: Any) -> None:
    """BadInput unless weight and estimate of the KL come together and can work as a loss."""
    who = type(loss).__name__
    if loss.kl == "k1":
        raise BadInput(
            who, "kl='k1' as a loss has an expected gradient of 0", fix="use 'k2' or 'k3'"
        )
    if loss.kl not in (None, "k2", "k3"):
        raise BadInput(who, "kl", expected="'k2', 'k3' or None", got=loss.kl)
    if (loss.kl_weight > 0) != (loss.kl is not None):
        raise BadInput(who, "kl and kl_weight belong together", fix="give both or neither")
