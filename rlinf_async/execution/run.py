"""`Run`: what a script's `main` is given."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlinf_async.communication.runtime_folder import RuntimeFolder
from rlinf_async.errors import BadInput
from rlinf_async.execution.definitions import Envs, Policy
from rlinf_async.execution.layout import cut_into_cells
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.memory import state_shape
from rlinf_async.execution.metrics import MetricsWriter
from rlinf_async.execution.options import EngineOptions
from rlinf_async.execution.pipeline import Pipeline
from rlinf_async.execution.probe import probe_env, probe_worker
from rlinf_async.execution.progress import Progress
from rlinf_async.execution.records import TrainReport
from rlinf_async.execution.references import describe, describe_factory, needs_script, rebuild
from rlinf_async.execution.run_folder import RunFolder
from rlinf_async.execution.scores import EvaluationReport
from rlinf_async.execution.spaces import Spaces
from rlinf_async.execution.status import RunStatus
from rlinf_async.execution.user_workers import WorkerHandle, worker_reference
from rlinf_async.execution.watched import Watched
from rlinf_async.hardware.interpreters import interpreter_of, suite_of
from rlinf_async.tracing.recorder import Recorder

log = get_logger()


class Run:
    """One run: its options, folder, seed, metrics, and the pipeline that it may open."""

    def __init__(
        self,
        options: EngineOptions,
        folder: RunFolder,
        *,
        script: Path | None,
        cores: tuple[int, ...],
        recorder: Recorder,
        runtime_folder: RuntimeFolder,
        began_s: float,
        watched: Watched | None = None,
    ) -> None:
        self.options, self.folder, self.script, self.cores = options, folder, script, cores
        self.recorder = recorder
        self.runtime_folder = runtime_folder
        self.watched = watched or Watched()
        self.loop_lag_s: Callable[[], float] = lambda: 0.0
        self._began_s = began_s
        self._pipeline: Pipeline | None = None
        self._metrics: MetricsWriter | None = None
        title = f"{script.stem if script else 'run'} · {options.mode} · seed {options.seed}"
        self.progress = Progress(title, began_s=began_s, cpu_s=self.cpu_s)
        self.config: dict[str, Any] = {}
        self.planning = False
        """Whether the job runs only until its plan is ready."""
        self.workers: list[WorkerHandle] = []

    @property
    def trace(self) -> Recorder:
        """Spans, instants and counters of the script's own, seen by `attach` and `trace`.

        `with run.trace.span("my stage", items=n): ...`; a worker has `self.context.recorder`.
        """
        return self.recorder

    def envs(
        self,
        env: Any,
        *,
        count: int,
        wrappers: Sequence[Any] = (),
        time_limit: int | None = None,
        chunk: int = 1,
        checks: bool = True,
        pixels: Any = None,
        backend: str = "auto",
    ) -> Envs:
        """`count` environments of a Gymnasium id, or of a named factory that returns one.

        Asks a short-lived process for their spaces, so that this one imports no simulator.

        Args:
            env: an id, a `BatchedTask`, or a named function or class that makes one Env.
            count: slots in all.
            wrappers: of `rlinf_async.envs.wrappers`, or names of Gymnasium's; the innermost first.
            time_limit: steps after which an episode is truncated, instead of the environment's own.
            chunk: simulator steps of one action.
            checks: end the run where observations or rewards are not finite or out of range.
            pixels: an `envs.rendering.Pixels`, for camera images as observations.
            backend: loop, threads or processes, for environments that are not stepped in batch;
                auto measures which is quickest.

        Raises:
            BadInput: unknown environment (with the nearest names), or one that cannot be built.
        """
        _check_sizes(count=count, chunk=chunk, time_limit=time_limit)
        described = _described(
            env,
            wrappers=[describe(each, where="run.envs(wrappers)") for each in wrappers] or None,
            time_limit=time_limit,
            chunk=None if chunk == 1 else chunk,
            checks=None if checks else False,
            backend=self._backend(backend),
            pixels=None if pixels is None else describe(pixels, where="run.envs(pixels)"),
        )
        function = getattr(env, "func", env)  # a functools.partial is named after its function
        name = env if isinstance(env, str) else getattr(function, "__qualname__", repr(env))
        suite = suite_of(env)
        interpreter = None if suite is None else str(interpreter_of(suite))
        script = self.script if interpreter is None or needs_script(described) else None
        told = probe_env(described, name, script, self.runtime_folder.path, interpreter=interpreter)
        if pixels is not None:
            # Tried once, in the process that described them; the workers need not try again.
            log.info("pixels_drawn_by", gl=told["gl"])
            chosen = dataclasses.replace(pixels, gl=told["gl"])
            described["pixels"] = describe(chosen, where="run.envs(pixels)")
        self.progress.title = f"{self.progress.title} · {name} x {count}"
        return Envs(
            env=described,
            name=name,
            spaces=Spaces.from_json(told["spaces"]),
            cells=cut_into_cells(count, self.options.cell),
            interpreter=interpreter,
            drawing=told["drawing"],
        )

    def _backend(self, asked: str) -> str | None:
        """What to ask of the environments' cells; a debugger needs them in this very process."""
        if asked != "auto":
            return asked
        return "loop" if self.options.mode == "serial" else None

    def policy(
        self,
        policy_class: type,
        spaces: Spaces,
        *,
        normalize_observations: bool = False,
        **arguments: Any,
    ) -> Policy:
        """A policy of `policy_class(spaces, **arguments)`.

        Built-in records are checked here; a `torch.nn.Module` class is built in the workers only.
        With `normalize_observations`, running mean and variance belong to the weights version.
        Where the record, or the class, has a true `squash`, the policy's continuous actions are
        before a tanh, which is applied and stretched to the bounds when they are executed.
        """
        where = f"run.policy({getattr(policy_class, '__name__', policy_class)})"
        factory = describe_factory(policy_class, {"spaces": spaces, **arguments}, where=where)
        policy: Any = policy_class
        if hasattr(policy_class, "to_module"):
            try:
                policy = rebuild(factory, where=where)()
            except TypeError as cause:
                raise BadInput(where, str(cause)) from cause
        return Policy(
            factory=factory,
            name=policy_class.__name__,
            normalize_observations=normalize_observations,
            squash=getattr(policy, "squash", False) is True,
            memory=state_shape(policy),
        )

    def worker(
        self, worker: type | str, *, interpreter: str | None = None, **arguments: Any
    ) -> WorkerHandle:
        """A worker of the user's own, a `Worker` subclass or its `module:qualname`.

        It gets a host of its own when the pipeline opens; its methods are called by the handle.
        `interpreter` is the Python that it runs in, such as `run.envs(...).interpreter` of a suite;
        None: the run's own, which in serial mode is the only one.

        Raises:
            BadInput: hosts cannot import the class, or it is no `Worker`.
        """
        reference = worker_reference(worker)
        probe_worker(reference, self.script, self.runtime_folder.path)
        name = f"{reference.rpartition(':')[2].rpartition('.')[2].lower()}-{len(self.workers)}"
        described = {k: describe(v, where=f"run.worker({name})") for k, v in arguments.items()}
        handle = WorkerHandle(
            name,
            reference,
            described,
            deadline_s=self.options.reply_timeout_s,
            start_s=self.options.start_timeout_s,
            interpreter=interpreter,
        )
        self.workers.append(handle)
        return handle

    def pipeline(self, *, iterations: int, max_lag: int = 0, placement: Any = None) -> Pipeline:
        """The pipeline of this run, to be opened with `async with`.

        Args:
            iterations: batches in all; exactly one `publish()` follows each.
            max_lag: versions a sample may be old when trained on; 0 is exactly on-policy.
            placement: instead of the one that `--mode` gives: a text such as
                'render+rollout=0-2; train=3' (see `rlinf_async.scheduling.grammar`), or a
                `scheduling.placement.Placement`.
        """
        if self._pipeline is not None:
            raise BadInput("run.pipeline", "this run has a pipeline already", expected="one")
        if iterations < 1:
            raise BadInput("run.pipeline", "iterations", expected="at least 1", got=iterations)
        if max_lag < 0:
            raise BadInput("run.pipeline", "max_lag", expected="0 or more", got=max_lag)
        self.progress.iterations, self.watched.max_lag = iterations, max_lag
        self._pipeline = Pipeline(self, iterations=iterations, max_lag=max_lag, placement=placement)
        return self._pipeline

    def log(self, report: TrainReport, evaluation: EvaluationReport | None = None) -> None:
        """Write one iteration's metrics, with those of an evaluation; never waits for the disk."""
        if self._metrics is None:
            self._metrics = MetricsWriter(self.folder.path)
        row = self.progress.add(report)
        if self._pipeline is not None:
            row.update(self._pipeline.wait_shares())
        if evaluation is not None:
            row.update(evaluation.metrics())
        self._metrics.write(row)

    def status(self) -> RunStatus:
        """A snapshot for displays."""
        live = {} if self._pipeline is None else self._pipeline.live_status()
        return self.progress.status(loop_lag_ms=self.loop_lag_s() * 1000, **live)

    def cpu_s(self) -> float:
        """CPU seconds of the controller and of all hosts so far."""
        hosts = 0.0 if self._pipeline is None else self._pipeline.cpu_s()
        return time.process_time() + hosts

    async def close(self) -> None:
        """Write out what is queued for the metrics files."""
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)


def _check_sizes(**sizes: int | None) -> None:
    for argument, value in sizes.items():
        if value is not None and value < 1:
            raise BadInput("run.envs", argument, expected="at least 1", got=value)


def _described(env: Any, **around: Any) -> Any:
    """An environment with what was asked for around it (None: nothing), as plain values."""
    described = env if isinstance(env, str) else describe(env, where="run.envs")
    asked = {name: value for name, value in around.items() if value is not None}
    return {"env": described, **asked} if asked else described
