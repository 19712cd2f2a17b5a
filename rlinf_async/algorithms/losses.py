"""Policy losses as records. The arithmetic is in `losses_torch` and in the fused learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_async.errors import BadInput

_DEFAULT_WEIGHT_CAP = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOLoss:
    """Proximal policy optimization (Schulman et al., 2017), with its usual switches.

    With r the ratio of new to old probability and A the advantage, the policy's loss is the mean of
    max(-A r, -A clip(r, 1 - clip, 1 + clip_high)). A switch that could have no effect is refused.
    """

    clip: float | None = 0.2
    """How far below 1 the ratio counts, and above it unless `clip_high` is given; None: any."""
    clip_high: float | None = None
    """How far above 1 the ratio counts; None: as far as `clip`."""
    dual_clip: float | None = None
    """c > 1: where A < 0 the loss is at most -c A."""
    value_weight: float = 0.5
    """Weight of the value loss, which is the mean of (V - return)^2 (no factor 0.5)."""
    value_clip: float | None = None
    """Take the larger error of V and of V kept within this distance of the old value."""
    entropy_weight: float = 0.0
    log_ratio_clamp: float | None = None
    """Keep the log-ratio within +- this before its exponential."""
    correction: Literal["decoupled"] | None = None
    """`decoupled`: clip around the newest version's own probabilities and weigh each sample by
    their ratio to those that acted (Hilton et al., 2022), for samples some versions old."""
    weight_cap: float = _DEFAULT_WEIGHT_CAP
    """Largest weight of `correction`."""
    cap: Literal["truncate", "drop"] = "truncate"
    """What becomes of a weight above `weight_cap`: the cap, or 0."""
    normalize_advantages: Literal["batch", "minibatch", "none"] = "batch"
    """To mean 0 and deviation 1 over the whole batch, over each mini-batch, or not at all."""

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_choices()
        self._check_unused()

    @property
    def low(self) -> float:
        """Smallest ratio that counts, 0 where unclipped."""
        return 0.0 if self.clip is None else 1.0 - self.clip

    @property
    def high(self) -> float:
        """Largest ratio that counts, infinity where unclipped."""
        if self.clip is None:
            return float("inf")
        return 1.0 + (self.clip if self.clip_high is None else self.clip_high)

    def _check_ranges(self) -> None:
        if self.clip is not None and not 0 < self.clip <= 1:
            raise BadInput("PPOLoss", "clip", expected="in (0, 1] or None", got=self.clip)
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise BadInput("PPOLoss", "dual_clip", expected="> 1 or None", got=self.dual_clip)
        for name in ("clip_high", "value_clip", "log_ratio_clamp", "weight_cap"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BadInput("PPOLoss", name, expected="> 0", got=limit)
        for name in ("value_weight", "entropy_weight"):
            weight = getattr(self, name)
            if not 0 <= weight < float("inf"):
                raise BadInput("PPOLoss", name, expected="a finite number >= 0", got=weight)

    def _check_choices(self) -> None:
        choices = {
            "correction": (None, "decoupled"),
            "cap": ("truncate", "drop"),
            "normalize_advantages": ("batch", "minibatch", "none"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise BadInput("PPOLoss", name, expected=f"one of {known}", got=getattr(self, name))

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
        if self.value_weight == 0 and self.value_clip is not None:
            raise BadInput("PPOLoss", "value_clip has no effect with value_weight=0")
