"""How episodes of groups are compared, as records for `pipe.train(advantages=...)`.

The arithmetic is in `groups`; `scheduling.work_list` says which episodes there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf_async.algorithms.advantages import Advantages
from rlinf_async.algorithms.groups import GroupBaseline
from rlinf_async.algorithms.losses import GroupLoss
from rlinf_async.algorithms.optimizers import Adam
from rlinf_async.errors import BadInput
from rlinf_async.scheduling.work_list import Episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRelative:
    """Each episode's return against its group; all of its entries have that advantage."""

    baseline: GroupBaseline = "grpo"
    """See `groups.group_advantages`."""
    overlong_cushion: int | None = None
    """Soft punishment of length (DAPO): -1 at the limit, falling to 0 so many steps before it."""

    def __post_init__(self) -> None:
        if self.baseline not in ("grpo", "dr_grpo", "rloo"):
            known = "'grpo', 'dr_grpo' or 'rloo'"
            raise BadInput("group_relative", "baseline", expected=known, got=repr(self.baseline))
        if self.overlong_cushion is not None and self.overlong_cushion < 1:
            got = self.overlong_cushion
            raise BadInput("group_relative", "overlong_cushion", expected="at least 1", got=got)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP:
    """REINFORCE++ (Hu et al., 2025): normalised over the batch instead of within the group."""

    gamma: float = 1.0
    kl_weight: float = 0.0
    """Weight of the distance to the first policy (k1), which is taken from the rewards."""
    group_baseline: bool = False
    """Take the group's mean from each score first; there are no rewards of single steps then."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise BadInput("reinforce_pp", "gamma", expected="within [0, 1]", got=self.gamma)
        if not self.kl_weight >= 0.0:
            raise BadInput("reinforce_pp", "kl_weight", expected=">= 0", got=self.kl_weight)
        if self.group_baseline and self.kl_weight:
            raise BadInput(
                "reinforce_pp",
                "with group_baseline the distance to the first policy belongs into the loss",
                fix="use GroupLoss(kl='k2', kl_weight=...)",
            )
        if self.group_baseline and self.gamma != 1.0:
            raise BadInput("reinforce_pp", "gamma has no effect with group_baseline")

    @property
    def kl(self) -> str | None:
        """Which estimate of the distance is taken from the rewards, if any."""
        return "k1" if self.kl_weight else None


GroupAdvantages = GroupRelative | ReinforcePP
"""What `pipe.train(advantages=...)` takes where whole episodes are collected."""


def group_relative(
    baseline: GroupBaseline = "grpo", overlong_cushion: int | None = None
) -> GroupRelative:
    """Name the comparison within groups: of GRPO, Dr.GRPO (`dr_grpo`) or RLOO (`rloo`)."""
    return GroupRelative(baseline=baseline, overlong_cushion=overlong_cushion)


def reinforce_pp(
    gamma: float = 1.0, kl_weight: float = 0.0, group_baseline: bool = False
) -> ReinforcePP:
    """Name REINFORCE++, with or without the group's mean as baseline."""
    return ReinforcePP(gamma=gamma, kl_weight=kl_weight, group_baseline=group_baseline)


def check_group_training(
    *,
    loss: Any,
    optimizer: Any,
    advantages: Any,
    episodes: Episodes,
    max_lag: int,
    lag: str,
) -> None:
    """BadInput for a configuration of episodes and groups that cannot be right."""
    who = "train"
    if not isinstance(loss, GroupLoss):
        got = type(loss).__name__
        if isinstance(advantages, Advantages) or callable(loss):
            got = f"{got}: whole episodes are compared, and there is no estimate of values"
        raise BadInput(who, "loss", expected="grpo(), dr_grpo(...), dapo() or GroupLoss", got=got)
    if not isinstance(advantages, GroupAdvantages):
        expected = "group_relative(...) or reinforce_pp(...)"
        raise BadInput(who, "advantages", expected=expected, got=type(advantages).__name__)
    if not isinstance(optimizer, Adam):
        raise BadInput(who, "optimizer", expected="Adam(...)", got=repr(optimizer))
    if loss.engine_weight_cap is not None:
        raise BadInput(who, "engine_weight_cap: no engine of its own samples here")
    if lag == "free" and max_lag:
        raise BadInput(
            who,
            f"free lag with max_lag={max_lag} needs a correction, and GroupLoss has none",
            fix="use exact lag, or max_lag=0",
        )
    _check_sizes(loss, advantages, episodes)


def _check_sizes(loss: GroupLoss, advantages: GroupAdvantages, episodes: Episodes) -> None:
    grouped = isinstance(advantages, GroupRelative) or advantages.group_baseline
    if grouped and episodes.size < 2:
        raise BadInput(
            "train", "a group of one has nobody to be compared with", fix="use Episodes(size=...)"
        )
    if isinstance(advantages, ReinforcePP) and advantages.kl_weight and loss.kl is not None:
        raise BadInput(
            "train", "the distance to the first policy is in the rewards and in the loss"
        )
    cushion = getattr(advantages, "overlong_cushion", None)
    if cushion is not None and cushion > episodes.limit:
        expected = f"at most the limit {episodes.limit}"
        raise BadInput("group_relative", "overlong_cushion", expected=expected, got=cushion)
