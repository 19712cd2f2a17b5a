"""Which arrangement a running job should have: measure, predict, try, hold, and look again.

A run begins with a short measured warm-up. Costs fitted to it predict every other arrangement, and
those that may be the best are tried, each for a few real iterations. The winner is held. When the
load changes for good, the costs follow at once and predict anew; a plan that promises enough more
is adopted, and given up again if it does not keep its promise.

Fed with measurements and returning decisions: there is no clock in here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from rlinf_async.scheduling.costs import Drift, Prediction
from rlinf_async.scheduling.live_costs import IterationTimes, LiveCosts, Sizes
from rlinf_async.scheduling.planner import worth_switching

DISCARDED = 1
"""Iterations after a change, and lag on top, that belong to the arrangement before or warm up."""
WARM_S = 1.0
"""Seconds at the start of a run that belong to nothing: memory is touched for the first time, and
code runs for the first time, so that phases take longer than they will."""
BLOCK_S = 0.5
"""Seconds that a trial measures at least, ..."""
BLOCK_LEAST, BLOCK_MOST = 3, 12
"""... within these numbers of measurements."""
AS_GOOD = 0.02
"""Of arrangements this close the simplest is taken: noise would choose otherwise."""
ROUNDS = 3
"""Trials of arrangements that cannot be told apart yet."""
LOOKS = 4
"""Alarms of one change before the load that it led to is what is normal."""
RECENT = 3
"""Iterations that tell how fast the load is after it changed."""

State = Literal["warm-up", "trial", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One arrangement that a run may have."""

    name: str
    sizes: Sizes
    probe: bool = False
    """Only measured, for what it tells of the others; never chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One decision: what was known, what was chosen and why."""

    iteration: int
    chosen: str
    reason: str
    predicted_s: Mapping[str, tuple[float, float, float]]
    """Arrangement -> seconds of an iteration with the interval, before it had run."""
    measured_s: Mapping[str, float]
    """Arrangement -> median seconds of an iteration, of those that have run."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "iteration": self.iteration,
            "chosen": self.chosen,
            "reason": self.reason,
            "predicted_s": {name: list(each) for name, each in self.predicted_s.items()},
            "measured_s": dict(self.measured_s),
        }


@dataclass(slots=True)
class _Block:
    """What is measured of one arrangement."""

    discard: int
    discard_s: float
    """Of iterations that are left out: at least so many, for at least so long."""
    window: int
    """Iterations of one measurement: where phases alternate, k + 1 batches are collected in one
    turn and trained in the next."""
    times: list[IterationTimes] = field(default_factory=list)
    """Of a trial; a plan that is held keeps none, however long it is."""
    _open: list[IterationTimes] = field(default_factory=list)

    def add(self, times: IterationTimes) -> IterationTimes | None:
        """Take in one iteration; the mean of a window where it is the last of one that counts."""
        if self.discard > 0 or self.discard_s > 0.0:
            self.discard -= 1
            self.discard_s -= times.seconds
            return None
        self._open.append(times)
        if len(self._open) < self.window:
            return None
        mean = IterationTimes.mean(self._open)
        self._open = []
        return mean

    @property
    def full(self) -> bool:
        """Whether it is long enough."""
        total_s = sum(each.seconds for each in self.times)
        count = len(self.times)
        return count >= BLOCK_MOST or (count >= BLOCK_LEAST and total_s >= BLOCK_S)


class _Trials:
    """Seconds of an iteration of each arrangement, over all its blocks."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, name: str, block: _Block) -> None:
        self._seconds.setdefault(name, []).extend(each.seconds for each in block.times)

    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self._seconds.items()}

    def error_s(self, name: str) -> float:
        """Standard error of the median, by the absolute deviations from it."""
        values = self._seconds[name]
        middle = median(values)
        deviation_s = 1.48 * median(abs(each - middle) for each in values)
        return 1.25 * deviation_s / math.sqrt(len(values))

    def contenders(self, names: Sequence[str]) -> list[str]:
        """Those that are the fastest, or as good within two standard errors."""
        medians = self.medians()
        best = min(names, key=lambda name: medians[name])
        limit_s = medians[best] * (1.0 + AS_GOOD)
        return [
            name
            for name in names
            if medians[name] <= limit_s + 2.0 * math.hypot(self.error_s(name), self.error_s(best))
        ]


class LivePlanner:
    """Chooses among `choices`; the first is what the run begins with."""

    def __init__(
        self, choices: Sequence[Choice], costs: LiveCosts, *, iterations: int, switch_s: float = 0.0
    ) -> None:
        self._choices = {choice.name: choice for choice in choices}
        self._costs, self._left, self._switch_s = costs, iterations, switch_s
        self._iteration = 0
        self.current = choices[0].name
        self.state: State = "warm-up"
        self.records: list[PlanRecord] = []
        self._queue = [choice.name for choice in choices if choice.probe]
        self._block = self._new_block(DISCARDED + costs.max_lag, WARM_S)
        self._predicted: dict[str, Prediction] = {}
        self._trials, self._rounds = _Trials(), 0
        self._watch: _Watch | None = None
        self._fall_back: tuple[str, float] | None = None

    def iteration(self, times: IterationTimes) -> str:
        """Take in the iteration that has just ended; returns what the next one runs under."""
        self._iteration += 1
        self._left -= 1
        if self.state == "held":
            self._hold(times)
            return self.current
        sizes = self._choices[self.current].sizes
        if (mean := self._block.add(times)) is not None:
            # After a change of load the shape of the costs is the same, only their speed is not.
            learn = self._costs.follow if self.records else self._costs.learn
            learn(sizes, mean)
            self._block.times.append(mean)
        if self._block.full:
            self._trials.add(self.current, self._block)
            self._next()
        return self.current

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What may be chosen, and probes."""
        return tuple(self._choices.values())

    @property
    def costs(self) -> LiveCosts:
        """As learnt so far."""
        return self._costs

    def resize(self, choices: Sequence[Choice]) -> None:
        """The same choices, now that more is known of their sizes; before any was measured."""
        self._choices = {choice.name: choice for choice in choices}

    def resume(self) -> None:
        """Iterations were left out meanwhile: the next ones may belong to something else."""
        self._block = self._new_block(DISCARDED + self._costs.max_lag)

    def _next(self) -> None:
        """A block is full: the next probe or trial, or the end of them."""
        if not self._queue and self.state == "warm-up":
            self.state = "trial"
            self._predicted = self._predictions()
            self._queue = self._worth_trying()
        if self._queue:
            self._move(self._queue.pop(0))
        else:
            self._choose()

    def _move(self, name: str) -> None:
        if name != self.current:
            self.current = name
            self._block = self._new_block(DISCARDED + self._costs.max_lag)
        else:
            self._block = self._new_block(0)

    def _new_block(self, discard: int, discard_s: float = 0.0) -> _Block:
        alternate = self._choices[self.current].sizes.sharing == "alternate"
        return _Block(discard, discard_s, self._costs.max_lag + 1 if alternate else 1)

    def _predictions(self) -> dict[str, Prediction]:
        return {
            name: self._costs.predict(choice.sizes)
            for name, choice in self._choices.items()
            if not choice.probe
        }

    def _worth_trying(self) -> list[str]:
        """Those not measured yet whose interval reaches below the best one's upper end."""
        measured = self._trials.medians()
        limit = min(
            measured.get(name, prediction.high) for name, prediction in self._predicted.items()
        )
        open_ones = [
            name
            for name, prediction in self._predicted.items()
            if name not in measured and prediction.low < limit
        ]
        return sorted(open_ones, key=lambda name: self._predicted[name].seconds)

    def _choose(self) -> None:
        """The fastest of those tried; of equally fast ones the simplest."""
        if self._fall_back is not None:
            before, self._fall_back = self._fall_back, None
            self._keep_or_check(*before)
            return
        measured = self._trials.medians()
        usable = [name for name in measured if not self._choices[name].probe]
        open_ones = self._trials.contenders(usable)
        # A burst of something else in one block is not seen in its spread, but the costs know it.
        expected = self._simplest(usable)
        self._rounds += 1
        if expected not in open_ones and self._rounds < ROUNDS:
            open_ones = [expected, *open_ones]
        if len(open_ones) > 1 and self._rounds < ROUNDS:
            self._queue = open_ones
            self._move(self._queue.pop(0))
            return
        chosen = self._simplest(open_ones)
        self._adopt(chosen, _reason(chosen, {name: measured[name] for name in usable}))

    def _simplest(self, names: Sequence[str]) -> str:
        """Of arrangements that measurements cannot tell apart: by what is predicted of them."""
        limit_s = min(self._predicted[name].seconds for name in names) * (1.0 + AS_GOOD)
        return min((n for n in names if self._predicted[n].seconds <= limit_s), key=self._rank)

    def _rank(self, name: str) -> int:
        order = ("own", "alternate", "yield")
        return order.index(self._choices[name].sizes.sharing)

    def _keep_or_check(self, before: str, before_s: float) -> None:
        """Keep the new plan if it is as fast as promised; else measure the one before as well."""
        now_s = self._trials.medians()[self.current]
        if now_s <= before_s * (1.0 + AS_GOOD):
            self._adopt(self.current, f"kept: {now_s:.4g} s an iteration, {before_s:.4g} before")
        else:
            self._move(before)

    def _adopt(self, name: str, reason: str) -> None:
        self._move(name)
        self.state = "held"
        self._watch = None
        self.records.append(
            PlanRecord(
                iteration=self._iteration,
                chosen=name,
                reason=reason,
                predicted_s={n: (p.seconds, p.low, p.high) for n, p in self._predicted.items()},
                measured_s=self._trials.medians(),
            )
        )

    def _hold(self, times: IterationTimes) -> None:
        if (mean := self._block.add(times)) is None:
            return
        factors = self._costs.follow(self._choices[self.current].sizes, mean)
        if self._watch is None:
            self._watch = _Watch()
        if self._watch.add(factors):
            self._replan()

    def _replan(self) -> None:
        """The load has changed: is another arrangement better now?"""
        assert self._watch is not None
        self._costs.set_speeds(self._watch.recent())
        steps = self._watch.steps()
        predicted = self._predictions()
        own = predicted[self.current]
        best = min(predicted, key=lambda name: (predicted[name].seconds, self._rank(name)))
        # What both have in common cannot be wrong about their difference.
        gain_error_s = 0.25 * abs(predicted[best].high - predicted[best].low - own.high + own.low)
        if best == self.current or not worth_switching(
            own.seconds,
            predicted[best].seconds,
            gain_error_s,
            iterations_left=self._left,
            switch_s=self._switch_s,
        ):
            # The change may not be over: it becomes what is normal only when it lasts.
            self._watch = self._watch if self._watch.look_again() else None
            return
        self._watch = None
        self._predicted, self._trials, self._rounds = predicted, _Trials(), 0
        # Of what was measured since the change, some was collected before it.
        self._fall_back = (self.current, own.seconds)
        self.state = "trial"
        changed = ", ".join(f"{phase} {math.exp(step):.2g}x" for phase, step in steps.items())
        self.records.append(
            PlanRecord(
                iteration=self._iteration,
                chosen=best,
                reason=f"the load changed ({changed}): {self.current} would take "
                f"{own.seconds:.4g} s an iteration, {best} {predicted[best].seconds:.4g}",
                predicted_s={n: (p.seconds, p.low, p.high) for n, p in predicted.items()},
                measured_s={},
            )
        )
        self._move(best)


REFERENCE = 8
"""Iterations under a plan that tell what is normal there."""
LEAST_SLACK, LEAST_LIMIT = 0.05, 0.5


def _reason(chosen: str, measured: Mapping[str, float]) -> str:
    reason = f"{measured[chosen]:.4g} s an iteration, measured"
    others = {name: seconds for name, seconds in measured.items() if name != chosen}
    if not others:
        return reason
    next_one = min(others, key=lambda name: others[name])
    more = others[next_one] / measured[chosen] - 1.0
    if more > AS_GOOD:
        return f"{reason}; {next_one} takes {more:.1%} more"
    return f"{reason}; {next_one} cannot be told apart, and is no simpler"


class _Watch:
    """Notices that a phase has become slower or faster for good, against its first iterations."""

    def __init__(self) -> None:
        self._first: dict[str, list[float]] = {}
        self._since: dict[str, list[float]] = {}
        self._drifts: dict[str, Drift] = {}
        self._looks = 0

    def add(self, log_factors: Mapping[str, float]) -> bool:
        """Take in an iteration's log speed factors by phase; whether one has changed."""
        # Every phase must be heard, whatever another one says.
        return any([self._changed(phase, value) for phase, value in log_factors.items()])

    def look_again(self) -> bool:
        """Begin to add up anew against the same iterations; False once that was done often."""
        self._looks += 1
        for drift in self._drifts.values():
            drift.reset()
        return self._looks < LOOKS

    def recent(self) -> dict[str, float]:
        """Log speed factors of the last few iterations."""
        return {phase: median(values) for phase, values in self._since.items()}

    def steps(self) -> dict[str, float]:
        """By how much the log speed factors have changed."""
        return {phase: v - median(self._first[phase]) for phase, v in self.recent().items()}

    def _changed(self, phase: str, residual: float) -> bool:
        first = self._first.setdefault(phase, [])
        if phase not in self._drifts:
            first.append(residual)
            if len(first) == REFERENCE:
                spread = max(abs(each - median(first)) for each in first)
                self._drifts[phase] = Drift(
                    slack=max(LEAST_SLACK, spread), limit=max(LEAST_LIMIT, 6.0 * spread)
                )
            return False
        self._since[phase] = [*self._since.get(phase, []), residual][-RECENT:]
        return self._drifts[phase].add(residual - median(first))
