"""Evaluations: whole episodes with frozen weights, in workers of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution.hosts import Host
from rlinf_async.execution.options import EngineOptions
from rlinf_async.execution.records import Episode
from rlinf_async.execution.roles import role_reference
from rlinf_async.execution.scores import EvaluationReport
from rlinf_async.execution.spaces import ArraySpec, Spaces, chunked

if TYPE_CHECKING:
    from rlinf_async.execution.collection import Collection
    from rlinf_async.execution.crew import Crew
    from rlinf_async.execution.definitions import Envs
    from rlinf_async.execution.run import Run

ROLE = "evaluate"
SLICE_S = 1.0
"""A worker answers after about so long, so that progress shows and a stuck one is noticed."""
DEFAULT_SLOTS = 16

Heard = Callable[[list[Episode], int], None]
"""Told of the episodes that have ended and of the simulator steps made since it was last told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Which episodes, and what is kept of them."""

    episodes: int
    seed: int
    sampled: bool = False
    merged: bool = False
    """One policy call for all slots of a worker: the last bits then depend on their number."""
    record: Path | None = None
    """Folder of a recording (`rlinf_async.recording`)."""
    videos: Path | None = None
    """Folder for one video per episode."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise BadInput("evaluation", "episodes", expected="at least 1", got=self.episodes)


def check_spaces(policy: Spaces, env: Spaces, name: str) -> None:
    """BadInput unless a policy sees and does what the environment offers.

    `env` are the spaces of one simulator step, or of the policy's chunk.
    """
    who = f"environment {name!r}"
    fix = "evaluate in an environment like the one that the policy was trained in"
    if policy.observation != env.observation:
        seen, shown = (_shapes(spaces.observation) for spaces in (policy, env))
        raise BadInput(
            who, "its observations are not those of the policy", expected=seen, got=shown, fix=fix
        )
    offered = env.action if env.chunk == policy.chunk else chunked(env.action, policy.chunk)
    if policy.action != offered:
        raise BadInput(
            who,
            "its actions are not those of the policy",
            expected=policy.action,
            got=offered,
            fix=fix,
        )


def _shapes(specs: Sequence[ArraySpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in specs)


def plan_of(who: str, *, record: Any = None, videos: Any = None, **more: Any) -> EvaluationPlan:
    """A plan with its folders as absolute paths; BadInput for what no plan has."""
    known = EvaluationPlan.__dataclass_fields__
    for name in more:
        if name not in known:
            raise BadInput(who, f"no argument {name!r}", fix=nearest(name, known))
    return EvaluationPlan(
        **more,
        record=None if record is None else Path(record).absolute(),
        videos=None if videos is None else Path(videos).absolute(),
    )


class Evaluators:
    """One evaluate worker in each of some hosts; item i of a work list goes to worker i mod W."""

    def __init__(
        self, hosts: Sequence[Host], options: EngineOptions, *, worker: str = ROLE
    ) -> None:
        """`worker`: the name of the workers, of its own where hosts have other such workers."""
        self._hosts, self._worker = hosts, worker
        self._start_s, self._reply_s = options.start_timeout_s, options.reply_timeout_s
        self._env_s = options.env_timeout_s

    async def create(self, env: Any, name: str, *, slots: int, film: bool = False) -> None:
        """Build the environments, `slots` in all and at least one in each worker."""
        count = len(self._hosts)
        async with asyncio.TaskGroup() as group:
            for number, host in enumerate(self._hosts):
                share = max(1, (slots + count - 1 - number) // count)
                arguments = {"env": env, "name": name, "slots": share, "film": film}
                group.create_task(self._create(host, arguments))

    async def load(self, checkpoint: Path) -> int:
        """Act with a checkpoint's policy; returns its version."""
        versions = await self._all("load", {"checkpoint": str(checkpoint)})
        return int(versions[0])

    async def adopt(self, arguments: dict[str, Any]) -> None:
        """Act with the version in a weights row, which is copied before this returns."""
        await self._all("adopt", arguments)

    async def score(self, plan: EvaluationPlan, heard: Heard | None = None) -> tuple[Episode, ...]:
        """All episodes of the plan, in the order of the work list.

        `heard` is told what each answer brought.
        """
        episodes: list[Episode] = []

        async def work(number: int, host: Host) -> None:
            items = list(range(number, plan.episodes, len(self._hosts)))
            await self._call(host, "begin", _begin_arguments(plan, items), self._start_s)
            done = False
            while not done:
                told = await self._call(host, "advance", {"limit_s": SLICE_S}, self._reply_s)
                ended = [Episode(**episode) for episode in told["episodes"]]
                episodes.extend(ended)
                if heard is not None:
                    heard(ended, told["env_steps"])
                done = told["done"]

        async with asyncio.TaskGroup() as group:
            for number, host in enumerate(self._hosts):
                group.create_task(work(number, host), name=f"evaluate-{host.name}")
        return tuple(sorted(episodes, key=lambda episode: episode.number))

    async def _create(self, host: Host, arguments: dict[str, Any]) -> None:
        limits = {"limit_s": self._env_s, "first_s": self._start_s}
        await host.call("host", "watch", limits, deadline_s=self._start_s)
        reference = role_reference(ROLE)
        command = {"name": self._worker, "reference": reference, "arguments": arguments}
        await host.call("host", "create", command, deadline_s=self._start_s)

    async def _all(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(self._call(host, method, arguments, self._start_s))
                for host in self._hosts
            ]
        return [call.result() for call in calls]

    async def _call(
        self, host: Host, method: str, arguments: dict[str, Any], limit_s: float
    ) -> Any:
        return await host.call(self._worker, method, arguments, deadline_s=limit_s)


class TrainingEvaluation:
    """Evaluations of a pipeline's live version, in a host that nothing else runs in."""

    def __init__(self, run: Run, crew: Crew, collection: Collection) -> None:
        self._run, self._crew, self._collection = run, crew, collection
        self._one_at_a_time = asyncio.Lock()
        self._evaluators: dict[tuple[Any, ...], Evaluators] = {}

    async def score(self, envs: Envs, plan: EvaluationPlan, slots: int | None) -> EvaluationReport:
        """Score the version that is live when the evaluation begins."""
        if slots is not None and slots < 1:
            raise BadInput("pipe.evaluate", "slots", expected="at least 1", got=slots)
        async with self._one_at_a_time:
            await self._collection.built()
            count = min(slots or DEFAULT_SLOTS, plan.episodes)
            evaluators = await self._ready(envs, count, film=plan.videos is not None)
            document = self._collection.policy_document()
            with self._collection.live_weights() as (version, row):
                arguments = {
                    "version": version,
                    "row": row,
                    "policy": document["policy"],
                    "spaces": document["spaces"],
                    "normalize": document["normalize_observations"],
                }
                await evaluators.adopt(arguments)
            episodes = await evaluators.score(plan)
        return EvaluationReport(
            env=envs.name,
            version=version,
            seed=plan.seed,
            sampled=plan.sampled,
            episodes=episodes,
        )

    async def _ready(self, envs: Envs, slots: int, *, film: bool) -> Evaluators:
        """The worker for these environments; its host is started when it is first needed."""
        key = (orjson.dumps(envs.env), slots, film)
        if key not in self._evaluators:
            name = f"{ROLE}-{len(self._evaluators)}"
            host = await self._crew.add(name, ROLE, envs)
            await self._collection.share_weights(host)
            evaluators = Evaluators([host], self._run.options, worker=name)
            await evaluators.create(envs.env, envs.name, slots=slots, film=film)
            self._evaluators[key] = evaluators
        return self._evaluators[key]


def _begin_arguments(plan: EvaluationPlan, items: list[int]) -> dict[str, Any]:
    return {
        "run_seed": plan.seed,
        "items": items,
        "sampled": plan.sampled,
        "merged": plan.merged,
        "record": None if plan.record is None else str(plan.record),
        "videos": None if plan.videos is None else str(plan.videos),
    }
