"""What the run has done so far, as numbers for the metrics file and for displays."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.execution.records import Episode, TrainReport
from rlinf_async.execution.status import RunStatus

RETURN_WINDOW = 20
"""Finished training episodes that the mean return covers."""
RATE_WINDOW = 10
"""Iterations that the shown speed covers."""


class Progress:
    """Counts iterations, steps and episodes; times are seconds since the command began."""

    def __init__(self, title: str, *, began_s: float, cpu_s: Callable[[], float]) -> None:
        self.title = title
        self.phase = "starting"
        self.iterations = 0
        self._began_s, self._cpu_s = began_s, cpu_s
        self._iteration = self._env_steps = self._episodes = 0
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)
        self._lengths: deque[int] = deque(maxlen=RETURN_WINDOW)
        self._successes: deque[bool] = deque(maxlen=RETURN_WINDOW)
        self._marks: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOW + 1)
        self._lag_min, self._lag_max, self._lag_sum = 0, 0, 0
        self._losses: Mapping[str, float] = {}

    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._began_s

    def collecting(self) -> None:
        """Collection begins now: the speed of the first iteration is measured from here."""
        self.phase = "training"
        self._marks.append((self.elapsed_s(), self._env_steps))

    def add(self, report: TrainReport) -> dict[str, Any]:
        """Count one iteration; the row of metrics that describes it."""
        self._iteration = report.batch + 1
        self._env_steps += report.env_steps
        self._losses = report.metrics
        self._count_lag(report.lag_versions)
        for episode in report.episodes:
            self._count_episode(episode)
        now_s = self.elapsed_s()
        self._marks.append((now_s, self._env_steps))
        return {
            "iteration": self._iteration,
            "version": report.version,
            "time_s": now_s,
            "cpu_s": self._cpu_s(),
            "env_steps": self._env_steps,
            "env_steps_per_s": self.env_steps_per_s(),
            "episodes": self._episodes,
            **self._episode_means(),
            "lag": report.lag_versions,
            **{f"train/{name}": value for name, value in report.metrics.items()},
        }

    def env_steps_per_s(self) -> float:
        """Speed over the last iterations; 0 before the first."""
        if len(self._marks) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        return (last - first) / max(last_s - first_s, 1e-9)

    def status(self, **live: Any) -> RunStatus:
        """A snapshot; `live` adds streams, stages, hosts and loop lag."""
        mean = self._lag_sum / self._iteration if self._iteration else 0.0
        return RunStatus(
            title=self.title,
            phase=self.phase,
            elapsed_s=self.elapsed_s(),
            iteration=self._iteration,
            iterations=self.iterations,
            env_steps=self._env_steps,
            env_steps_per_s=self.env_steps_per_s(),
            return_mean=self._episode_means().get("return_mean"),
            episodes=self._episodes,
            lag=(self._lag_min, mean, self._lag_max),
            losses=self._losses,
            **live,
        )

    def _count_episode(self, episode: Episode) -> None:
        self._episodes += 1
        self._returns.append(episode.episode_return)
        self._lengths.append(episode.length)
        if episode.success_once is not None:
            self._successes.append(episode.success_once)

    def _count_lag(self, lag: int) -> None:
        self._lag_min = lag if self._iteration == 1 else min(self._lag_min, lag)
        self._lag_max = max(self._lag_max, lag)
        self._lag_sum += lag

    def _episode_means(self) -> dict[str, float]:
        if not self._returns:
            return {}
        means = {
            "return_mean": sum(self._returns) / len(self._returns),
            "length_mean": sum(self._lengths) / len(self._lengths),
        }
        if self._successes:
            means["success_mean"] = sum(self._successes) / len(self._successes)
        return means
