"""The evaluation of a checkpoint, with worker processes of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_async.errors import BadInput
from rlinf_async.execution.checkpoint import MARKER, read_documents
from rlinf_async.execution.crew import Crew
from rlinf_async.execution.definitions import Envs
from rlinf_async.execution.evaluation import (
    DEFAULT_SLOTS,
    ROLE,
    EvaluationPlan,
    Evaluators,
    Heard,
    check_spaces,
)
from rlinf_async.execution.probe import probe_env
from rlinf_async.execution.references import SCRIPT_MODULE, needs_script
from rlinf_async.execution.scores import EvaluationReport
from rlinf_async.execution.spaces import Spaces
from rlinf_async.hardware.interpreters import interpreter_of, suite_of
from rlinf_async.scheduling.placement import HostPlan, Placement

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A checkpoint and where it is to be evaluated."""

    checkpoint: Path
    spaces: Spaces
    env: Any
    """An id, or the description of a factory or of an `EnvRequest`."""
    name: str
    script: Path | None
    """The script that environment or policy come from; hosts load it."""
    version: int


def find_subject(given: Path, env: str | None) -> Subject:
    """The checkpoint in `given`, itself a checkpoint folder or a run's, for `env` or its own.

    Raises:
        BadInput: no complete checkpoint, one that does not say its environment, or one whose
            script is gone.
    """
    folder = given.expanduser().absolute()
    if not (folder / MARKER).exists() and (folder / "checkpoint").is_dir():
        folder = folder / "checkpoint"
    policy, manifest = read_documents(folder)
    request, name = _env_of(manifest, env, folder)
    return Subject(
        checkpoint=folder,
        spaces=Spaces.from_json(policy["spaces"]),
        env=request,
        name=name,
        script=_script_of(manifest, [request, policy["policy"]], folder),
        version=int(manifest.get("version", -1)),
    )


async def evaluate_checkpoint(
    run: Run,
    subject: Subject,
    plan: EvaluationPlan,
    *,
    slots: int | None = None,
    heard: Heard | None = None,
) -> EvaluationReport:
    """Score `subject` in one worker process for each core (or `--hosts`), `slots` at a time.

    Raises:
        BadInput: the environment cannot be built or is not one for this policy.
    """
    run.script = subject.script
    envs = _probed(run, subject)
    check_spaces(subject.spaces, envs.spaces, subject.name)
    count = min(slots or DEFAULT_SLOTS, plan.episodes)
    placement = _place(run, min(count, run.options.hosts or len(run.cores)))
    crew = Crew(run, placement, envs)
    try:
        await crew.start()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(crew.watch(), name="watch")
            hosts = [host for _, host in crew.with_role(ROLE)]
            evaluators = Evaluators(hosts, run.options)
            film = plan.videos is not None
            await evaluators.create(subject.env, subject.name, slots=count, film=film)
            version = await evaluators.load(subject.checkpoint)
            episodes = await evaluators.score(plan, heard)
            watch.cancel()
    finally:
        await crew.close()
    return EvaluationReport(
        env=subject.name, version=version, seed=plan.seed, sampled=plan.sampled, episodes=episodes
    )


def _probed(run: Run, subject: Subject) -> Envs:
    """The environments as described, in the interpreter that their simulator lives in."""
    env = subject.env
    suite = suite_of(env.get("env") if isinstance(env, dict) else env)
    interpreter = None if suite is None else str(interpreter_of(suite))
    script = subject.script if interpreter is None or needs_script(env) else None
    folder = run.runtime_folder.path
    told = probe_env(env, subject.name, script, folder, interpreter=interpreter)
    return Envs(
        env=env,
        name=subject.name,
        spaces=Spaces.from_json(told["spaces"]),
        cells=(),
        interpreter=interpreter,
    )


def _place(run: Run, count: int) -> Placement:
    """`count` hosts, one core each in turn."""
    cores = run.cores
    hosts = tuple(
        HostPlan(
            name=f"{ROLE}-{number}", cores=(cores[number % len(cores)],), roles=(ROLE,), cells=()
        )
        for number in range(count)
    )
    return Placement(mode="collocated", policy="beside", hosts=hosts, sharing="own")


def _env_of(manifest: dict[str, Any], env: str | None, folder: Path) -> tuple[Any, str]:
    """The environment's description and name; `env` takes the place of the trained one's id."""
    own = manifest.get("env_request", manifest.get("env"))
    if env is None:
        if own is None:
            raise BadInput(str(folder), "does not say its environment", fix="name one with --env")
        return own, str(manifest["env"])
    # What was put around the environment in training stays around the other one.
    if isinstance(own, dict) and "env" in own:
        return {**own, "env": env}, env
    return env, env


def _script_of(manifest: dict[str, Any], described: Any, folder: Path) -> Path | None:
    """The training script, where something described is not this package's own."""
    modules = {module for module in _modules(described) if not module.startswith("rlinf_async.")}
    if not modules:
        return None
    script = manifest.get("script")
    if script is not None and Path(script).exists():
        return Path(script)
    if SCRIPT_MODULE in modules:
        raise BadInput(
            str(folder),
            "its script is not there any more, and the policy or the environment come from it",
            expected=str(script),
            fix="put it back, or name another environment with --env",
        )
    return None


def _modules(described: Any) -> Iterator[str]:
    """The modules of every reference in a description."""
    if isinstance(described, dict):
        for key, value in described.items():
            if key in ("$call", "$name") and re.fullmatch(r"[\w.]+:[\w.]+", str(value)):
                yield str(value).partition(":")[0]
            yield from _modules(value)
    elif isinstance(described, list):
        for item in described:
            yield from _modules(item)
