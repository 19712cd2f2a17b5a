"""The evaluate worker: whole episodes with a frozen policy, apart from everything that trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.envs.filming import Camera, make_filmed_cell, steps_per_s
from rlinf_async.envs.registry import make_cell
from rlinf_async.errors import BadInput
from rlinf_async.execution.evaluation import check_spaces
from rlinf_async.execution.references import rebuild
from rlinf_async.execution.spaces import Spaces
from rlinf_async.execution.worker import Worker, WorkerContext
from rlinf_async.models.loading import LoadedPolicy, load_policy
from rlinf_async.workers.keeping import FilmWatcher, RecordingWatcher
from rlinf_async.workers.scoring import MergedPolicies, Policies, Scoring, SlotPolicies, Watcher


class EvaluateWorker(Worker):
    """Owns environments, policies and generators of its own; shares nothing with training.

    Waits for:    `load` or `adopt`, then `begin` and `advance` (input).
    Unblocked by: the evaluation in the controller.
    """

    def __init__(
        self, context: WorkerContext, *, env: Any, name: str, slots: int, film: bool = False
    ) -> None:
        """`film`: make environments that can be filmed, which is slower to build."""
        super().__init__(context)
        self._name = name
        self._camera: Camera | None = None
        if film:
            self._envs, self._camera = make_filmed_cell(env, slots)
        else:
            self._envs = make_cell(env, slots)
        self._fps = steps_per_s(self._envs)
        self._load: Callable[[], LoadedPolicy] | None = None
        self._version = -1
        self._scoring: Scoring | None = None

    def load(self, checkpoint: str) -> int:
        """Score with the policy of a checkpoint folder from now on; returns its version."""
        self._load = lambda: load_policy(checkpoint)
        self._version = int(load_policy(checkpoint).manifest.get("version", -1))
        return self._version

    def adopt(
        self,
        version: int,
        row: int,
        policy: dict[str, Any],
        spaces: dict[str, Any],
        normalize: bool,
    ) -> int:
        """Copy a version out of its weights row; the row may be overwritten afterwards.

        `policy` is described, as in a checkpoint's `policy.json`.
        """
        views = self.context.rows("weights", row)
        parsed = Spaces.from_json(spaces)
        make = rebuild(policy, where="evaluate")
        parameters = views["parameters"].copy()
        statistics = Statistics.from_row(views, parsed) if normalize else None

        def load() -> LoadedPolicy:
            return LoadedPolicy(make(), parsed, parameters, statistics, {"version": version})

        self._load, self._version = load, version
        return version

    def begin(
        self,
        run_seed: int,
        items: list[int],
        sampled: bool,
        merged: bool = False,
        record: str | None = None,
        videos: str | None = None,
    ) -> None:
        """Begin the first of `items`; what was under way is dropped."""
        self._drop()
        with _torch_generator_kept():
            try:
                policies = self._policies(run_seed, sampled=sampled, merged=merged)
            except ModuleNotFoundError as cause:
                raise BadInput(
                    f"evaluation in {self._name!r}",
                    f"the policy needs {cause.name!r}, which the environment's interpreter lacks",
                    fix=f"run `{sys.executable} -m pip install {cause.name}`",
                ) from cause
        check_spaces(policies.spaces, self._envs.spaces, self._name)
        watchers = self._watchers(policies.spaces, record, videos)
        self._scoring = Scoring(self._envs, policies, watchers, run_seed=run_seed, items=items)

    def advance(self, limit_s: float) -> dict[str, Any]:
        """Step for some `limit_s` seconds; the episodes that ended, and whether all have."""
        assert self._scoring is not None, "advance before begin"
        until_s, env_steps = time.monotonic() + limit_s, 0
        with self.context.recorder.span("evaluate.steps"):
            while not self._scoring.done and (not env_steps or time.monotonic() < until_s):
                env_steps += self._scoring.step()
        acted = {"first_version": self._version, "last_version": self._version}
        episodes = [
            {**episode, **acted, "task": self._envs.tasks[episode["slot"]]}
            for episode in self._scoring.take_finished()
        ]
        return {"episodes": episodes, "done": self._scoring.done, "env_steps": env_steps}

    def close(self) -> None:
        """Drop what is under way and close the environments."""
        self._drop()
        if self._camera is not None:
            self._camera.close()
        self._envs.close()

    def _policies(self, run_seed: int, *, sampled: bool, merged: bool) -> Policies:
        assert self._load is not None, "begin before load"
        slots = self._envs.slots
        if merged:
            return MergedPolicies(self._load(), slots, deterministic=not sampled, run_seed=run_seed)
        return SlotPolicies(self._load, slots, deterministic=not sampled)

    def _drop(self) -> None:
        if self._scoring is not None:
            self._scoring.close()
            self._scoring = None

    def _watchers(self, spaces: Spaces, record: str | None, videos: str | None) -> list[Watcher]:
        watchers: list[Watcher] = []
        if record is not None:
            watchers.append(
                RecordingWatcher(
                    Path(record),
                    spaces=spaces,
                    action=self._envs.spaces.action,
                    env=self._name,
                    tasks=self._envs.tasks,
                    fps=self._fps,
                    version=self._version,
                )
            )
        if videos is not None:
            assert self._camera is not None, "videos without film"
            watchers.append(FilmWatcher(Path(videos), self._camera, steps_per_frame=spaces.chunk))
        return watchers


@contextmanager
def _torch_generator_kept() -> Iterator[None]:
    """A module may draw initial weights from torch's global generator, which others may use."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    state = torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
