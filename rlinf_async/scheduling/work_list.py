"""Which episodes make up a batch, and who runs them: decided by number, never by arrival.

The work list of a batch is a sequence of groups; group g is the episodes (items) g * size to
(g + 1) * size - 1, which all begin in the same state. Item i belongs to cell i mod the number of
cells. A batch wants the first groups that do not tie; each one that ties is replaced by the next of
the list, as long as the budget lasts (dynamic sampling: Yu et al., 2025, DAPO, section 3.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlinf_async.errors import BadInput

Scores = Mapping[int, Sequence[float]]
"""Group number to the scores of its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """What `pipe.rollout(episodes=...)` collects for each batch: groups of whole episodes."""

    groups: int
    """Groups of a batch."""
    size: int
    """G, episodes of a group; all begin in one state."""
    limit: int
    """(Chunk-)steps after which an episode that is still under way is truncated."""
    replacements: int = 0
    """How many groups beyond `groups` may be tried in the place of groups that tie. With 0 those
    stay in the batch, and teach nothing."""
    keep_share: float | None = None
    """Cut stragglers: a cell goes no further once this share of its episodes has ended, and drops
    the others. Their scores are missing then, which biases the rest; refused with exact lag."""

    def __post_init__(self) -> None:
        for name, least in (("groups", 1), ("size", 1), ("limit", 1), ("replacements", 0)):
            if getattr(self, name) < least:
                got = getattr(self, name)
                raise BadInput("Episodes", name, expected=f"at least {least}", got=got)
        if self.keep_share is not None and not 0.0 < self.keep_share < 1.0:
            expected = "between 0 and 1, or None"
            raise BadInput("Episodes", "keep_share", expected=expected, got=self.keep_share)
        if self.replacements and self.size == 1:
            raise BadInput("Episodes", "a group of one episode always ties", fix="use size >= 2")
        if self.replacements and self.keep_share is not None:
            raise BadInput(
                "Episodes",
                "whether a group ties is not known where some of its episodes are cut",
                fix="give replacements or keep_share",
            )

    def items(self, groups: Collection[int], cell: int, cells: int) -> list[int]:
        """The episodes of `groups` that `cell` runs, in order."""
        numbers = (g * self.size + member for g in sorted(groups) for member in range(self.size))
        return [number for number in numbers if number % cells == cell]

    def horizon(self, cells: int, slots: int) -> int:
        """Steps that the longest list of a cell can take in `slots` slots: rows are so long.

        Every slot ends an episode in `limit` steps at most while there are any left to begin.
        """

        def steps(groups: int) -> int:
            items = -(-groups * self.size // cells)
            return -(-items // slots) * self.limit

        return steps(self.groups) + self.replacements * steps(1)


def tied(scores: Sequence[float]) -> bool:
    """Whether all scores of a group are equal: nothing can be learned from them."""
    return min(scores) == max(scores)


def untied_in_order(
    scores: Scores, *, wanted: int, budget: int, first: int = 0
) -> tuple[list[int], list[int]]:
    """The first `wanted` untied groups among the first `wanted + budget`, and which to try next.

    Args:
        scores: of all groups of the work list up to the largest number here.
        first: the number that the list begins with.
    """
    allowed = range(first, first + wanted + budget)
    kept = [g for g in sorted(scores) if g in allowed and not tied(scores[g])][:wanted]
    tried = max(scores) + 1 if scores else first
    missing = wanted - len(kept)
    return kept, [group for group in range(tried, tried + missing) if group in allowed]


def kept_groups(scores: Scores, episodes: Episodes) -> list[int]:
    """The groups that are trained on, in order: all, or with replacements those that do not tie."""
    if not episodes.replacements:
        return sorted(scores)
    wanted, budget = episodes.groups, episodes.replacements
    return untied_in_order(scores, wanted=wanted, budget=budget)[0]


class Rounds:
    """The work list of one batch: which groups each cell runs, round by round.

    A round ends when all cells have run their part of it; only then is it known which groups tie.
    """

    def __init__(self, episodes: Episodes, cells: int) -> None:
        self._episodes, self._cells = episodes, cells
        self._scores: dict[int, list[float]] = {}
        self._left = cells
        self.groups: list[int] = list(range(episodes.groups))
        """Of the present round; none when the list is over."""
        self.number = 0
        self.cells_done = 0
        """Cells for which nothing is left."""

    def items(self, cell: int) -> list[int]:
        """What `cell` runs in the present round."""
        return self._episodes.items(self.groups, cell, self._cells)

    def ran(self, scores: Mapping[int, float]) -> None:
        """A cell has run its part of the round: scores by item."""
        for item, score in sorted(scores.items()):
            self._scores.setdefault(item // self._episodes.size, []).append(score)
        self._left -= 1
        if self._left:
            return
        self._left, self.number = self._cells, self.number + 1
        self.groups = []
        if self._episodes.replacements:
            plan = self._episodes
            _, self.groups = untied_in_order(
                self._scores, wanted=plan.groups, budget=plan.replacements
            )
