"""What an iteration of a running job costs under each arrangement of its hosts.

Collecting and training are measured as wholes, by the controller: seconds in which any cell was
under way, seconds in which the learner was, and seconds in which both were. With

    r(d)   seconds to collect a batch on d cores while nothing is trained
    t, p   seconds to train, and of everything between training and the next admission
    chi    by how much one slows the other on cores of its own (memory, caches, shared units)

an iteration takes, k being the lag,

    alternate        r(D) + t + p
    own, k >= 1      max(r'(D - 1), t' + p, (r' + t' + p) / (k + 1))
    yield, k >= 1    the same, but collecting has D cores where training leaves them to it
    any, k = 0       r + t + p: nothing overlaps
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlinf_async.scheduling.costs import PhaseCost, Prediction, Sample
from rlinf_async.scheduling.placement import Sharing

COLLECT, TRAIN = "collect", "train"
LEAST_OVERLAP = 0.2
"""Share of a span that must overlap before its slowdown says something about contention."""
MOST_CORE_CONTENTION = 1.0
"""Cores that slow each other down by more than this would be one core."""
LEAST_S = 1e-9
MOST_CONTENTION = 3.0
"""A phase that is slowed down by more shares its cores with something else: noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """Seconds of one iteration, as the controller saw it."""

    seconds: float
    """From one publish to the next."""
    collect_s: float
    """In which any cell was collected."""
    train_s: float
    both_s: float
    """In which both were under way."""

    @classmethod
    def mean(cls, times: Sequence[IterationTimes]) -> IterationTimes:
        """Of several iterations."""
        count = len(times)
        return cls(
            seconds=sum(each.seconds for each in times) / count,
            collect_s=sum(each.collect_s for each in times) / count,
            train_s=sum(each.train_s for each in times) / count,
            both_s=sum(each.both_s for each in times) / count,
        )

    @property
    def rest_s(self) -> float:
        """In which neither was: publishing, the script's own work, waiting for a turn."""
        return max(0.0, self.seconds - self.collect_s - self.train_s + self.both_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What an arrangement is, for its costs."""

    sharing: Sharing
    cores: int
    """That collect while nothing is trained."""
    cores_beside: int
    """That collect while training runs; 0 if none may."""
    shards: int = 1
    """In which the gradient is computed."""
    trainers: int = 1
    """Processes that compute them."""


@dataclass(slots=True)
class LiveCosts:
    """Learns from iterations, and predicts those of other arrangements."""

    env_steps: int
    """Of a batch."""
    max_lag: int
    collect: PhaseCost = field(default_factory=lambda: PhaseCost(COLLECT))
    train: PhaseCost = field(default_factory=lambda: PhaseCost(TRAIN))
    _rest_s: list[float] = field(default_factory=list)

    def learn(self, sizes: Sizes, times: IterationTimes) -> None:
        """Take in an iteration of a trial: the shape of the costs follows it."""
        for cost, sample in self._samples(sizes, times):
            cost.add(sample)
        if sizes.sharing == "alternate":
            self._rest_s.append(times.rest_s)

    def follow(self, sizes: Sizes, times: IterationTimes) -> dict[str, float]:
        """Take in an iteration of the arrangement in force; log speed factors by phase."""
        factors = {}
        for cost, sample in self._samples(sizes, times):
            if cost is self.collect and sizes.sharing == "yield":
                sample = self._mixed(sizes, times)
            factors[cost.phase] = cost.follow(sample)
        return factors

    def set_speeds(self, log_factors: Mapping[str, float]) -> None:
        """The load has changed for good: the speeds take the whole step at once."""
        for cost in (self.collect, self.train):
            cost.log_speed = log_factors.get(cost.phase, cost.log_speed)

    @property
    def rest_s(self) -> float:
        """Median of what belongs to neither phase."""
        ordered = sorted(self._rest_s)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def slowdowns(self, sizes: Sizes) -> tuple[float, float]:
        """Of collecting beside training, and of training beside collecting; as measured.

        Where that is not known yet: as if every busy core slowed each other one by what more cores
        have slowed collecting by.
        """
        each, beside = self._core_contention(), sizes.cores_beside
        collect = self.collect.contention.get(TRAIN)
        train = self.train.contention.get(COLLECT)
        if collect is None:
            collect = each / (1.0 + each * (beside - 1))
        if train is None:
            train = each * beside
        return 1.0 + collect, 1.0 + train

    def predict(self, sizes: Sizes) -> Prediction:
        """Seconds of an iteration under an arrangement; ValueError before anything was learnt."""
        all_s = self.collect.predict(self.env_steps, sizes.cores)
        train_s = self.train.predict(sizes.shards, sizes.trainers)
        if sizes.sharing == "alternate" or self.max_lag == 0 or sizes.cores_beside == 0:
            total = all_s.seconds + train_s.seconds + self.rest_s
            low = all_s.low + train_s.low + self.rest_s
            high = all_s.high + train_s.high + self.rest_s
            extrapolated = all_s.extrapolated
            return Prediction(seconds=total, low=low, high=high, extrapolated=extrapolated)
        beside = self.collect.predict(self.env_steps, sizes.cores_beside)
        slow_collect, slow_train = self.slowdowns(sizes)
        guesses = [
            self._overlapped(r, b * slow_collect, t, t * slow_train)
            for r, b, t in (
                (all_s.seconds, beside.seconds, train_s.seconds),
                (all_s.low, beside.low, train_s.low),
                (all_s.high, beside.high, train_s.high),
            )
        ]
        point, low, high = guesses
        extrapolated = all_s.extrapolated or beside.extrapolated
        return Prediction(seconds=point, low=low, high=high, extrapolated=extrapolated)

    def parts(self, sizes: Sizes) -> dict[str, float]:
        """Seconds of each part of a predicted iteration, while the others do not run."""
        beside = sizes.cores_beside if sizes.sharing == "own" else sizes.cores
        return {
            COLLECT: self.collect.predict(self.env_steps, beside).seconds,
            TRAIN: self.train.predict(sizes.shards, sizes.trainers).seconds,
            "rest": self.rest_s,
        }

    def _overlapped(self, alone_s: float, beside_s: float, train_s: float, slow_s: float) -> float:
        """The period, k >= 1: batches take `alone_s` while nothing is trained, else `beside_s`.

        Whatever overlaps is slowed down: `slow_s` is training beside collecting all along.
        """
        # The lower end of an interval may be nothing at all.
        alone_s, beside_s = max(alone_s, LEAST_S), max(beside_s, LEAST_S)
        # The learner is busy for a share u of the time, collecting for a share v.
        period = max(alone_s, train_s + self.rest_s)
        for _ in range(50):
            u = min(1.0, slow_s / period)
            rate = u / beside_s + (1.0 - u) / alone_s
            collect_s = 1.0 / rate
            v = min(1.0, collect_s / period)
            trained_s = train_s + (slow_s - train_s) * v
            latency = (collect_s + trained_s + self.rest_s) / (self.max_lag + 1)
            found = max(collect_s, trained_s + self.rest_s, latency)
            if abs(found - period) < 1e-6 * period:
                break
            period = 0.5 * (period + found)
        return period

    def _samples(self, sizes: Sizes, times: IterationTimes) -> list[tuple[PhaseCost, Sample]]:
        found = []
        if (collected := self._collected(sizes, times)) is not None:
            found.append((self.collect, collected))
        if times.train_s > 0.0:
            overlap = _overlap(COLLECT, times.both_s, times.train_s)
            sample = Sample(
                units=sizes.shards,
                devices=sizes.trainers,
                seconds=times.train_s,
                overlap=overlap,
            )
            found.append((self.train, sample))
        return found

    def _collected(self, sizes: Sizes, times: IterationTimes) -> Sample | None:
        """What the iteration says of collecting; None if nothing."""
        if times.collect_s <= 0.0:
            return None
        if sizes.sharing == "yield" and sizes.cores_beside:
            return self._beside(sizes, times)
        return Sample(
            units=self.env_steps,
            devices=sizes.cores,
            seconds=times.collect_s,
            overlap=_overlap(TRAIN, times.both_s, times.collect_s),
        )

    def _beside(self, sizes: Sizes, times: IterationTimes) -> Sample | None:
        """What was not collected alone was collected beside training, which tells that rate."""
        alone_s = times.collect_s - times.both_s
        rest = 1.0 - alone_s / float(self.collect.seconds(self.env_steps, sizes.cores))
        if times.both_s < LEAST_OVERLAP * times.collect_s or rest < LEAST_OVERLAP:
            return None
        known_s = float(self.collect.seconds(self.env_steps, sizes.cores_beside))
        return Sample(
            units=self.env_steps,
            devices=sizes.cores_beside,
            seconds=min(times.both_s / rest, known_s * (1.0 + MOST_CONTENTION)),
            overlap={TRAIN: 1.0},
        )

    def _mixed(self, sizes: Sizes, times: IterationTimes) -> Sample:
        """The batch as it would have been on all cores, by the rates of both its parts."""
        alone_s = float(self.collect.seconds(self.env_steps, sizes.cores))
        beside_s = float(self.collect.seconds(self.env_steps, sizes.cores_beside))
        beside_s *= self.slowdowns(sizes)[0]
        batches = (times.collect_s - times.both_s) / alone_s + times.both_s / beside_s
        return Sample(units=self.env_steps, devices=sizes.cores, seconds=batches * alone_s)

    def _core_contention(self) -> float:
        """c, where each of d busy cores is 1 + c (d - 1) times slower than one alone."""
        seconds = self.collect.measured()
        if len(seconds) < 2:
            return 0.0
        few, many = min(seconds), max(seconds)
        ratio = (seconds[many] * many) / (seconds[few] * few)
        left = (many - 1) - ratio * (few - 1)
        if ratio <= 1.0:
            return 0.0
        return (
            MOST_CORE_CONTENTION if left <= 0.0 else min((ratio - 1) / left, MOST_CORE_CONTENTION)
        )


def _overlap(other: str, both_s: float, span_s: float) -> dict[str, float]:
    share = min(1.0, both_s / span_s)
    return {other: share} if share >= LEAST_OVERLAP else {}
