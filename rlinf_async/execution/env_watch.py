"""When an environment is taken for stuck: its step lasts many times longer than any before.

Pure: it reads a board of activity and is told the time.
"""

from __future__ import annotations

from rlinf_async.errors import EngineError
from rlinf_async.hardware.activity import BUILD, STEP, Board, Doing

OVER_SLOWEST = 20.0
"""A step or reset may take so many times the slowest one so far."""


class EnvStuck(EngineError):
    """A step or reset of an environment took far longer than any before."""


class EnvWatch:
    """Looks at what a process's environments are doing, every now and then.

    Args:
        board: where cells note what they do.
        limit_s: what a step or reset may take at least.
        first_s: the limit of what has not been measured yet: building, a first step, a first reset.
    """

    def __init__(self, board: Board, *, limit_s: float, first_s: float) -> None:
        self._board, self._limit_s, self._first_s = board, limit_s, first_s
        self._suspected: tuple[int, int] | None = None

    def look(self, now_ns: int) -> EnvStuck | None:
        """The error if, for the second time in a row, the same work is over its limit.

        The second look keeps a process that was stopped, or had no core, from being blamed.
        """
        overdue = next((d for d in self._board.doing() if self._is_over(d, now_ns)), None)
        if overdue is None:
            self._suspected = None
            return None
        before, self._suspected = self._suspected, (overdue.began_ns, overdue.notes)
        return self._error(overdue, now_ns) if before == self._suspected else None

    def limit_s(self, kind: int) -> float:
        """Seconds that a step, a reset or building may take now."""
        slowest_s = self._board.slowest_s(kind)
        if slowest_s == 0.0:
            return max(self._limit_s, self._first_s)
        return max(self._limit_s, OVER_SLOWEST * slowest_s)

    def _is_over(self, doing: Doing, now_ns: int) -> bool:
        return (now_ns - doing.began_ns) * 1e-9 > self.limit_s(doing.kind)

    def _error(self, doing: Doing, now_ns: int) -> EnvStuck:
        age_s = (now_ns - doing.began_ns) * 1e-9
        slowest_s = self._board.slowest_s(doing.kind)
        kind = "step" if doing.kind == STEP else "reset"
        known = "" if doing.kind == BUILD else f"; the slowest {kind} so far took {slowest_s:.3g} s"
        if slowest_s == 0.0:
            known = "; none has been measured yet"
        return EnvStuck(
            f"{doing} has taken {age_s:.1f} s, its limit is {self.limit_s(doing.kind):g} s{known}"
        )
