"""Building the workers of a collection: what each is made with, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlinf_async.communication.pool import RowPool
from rlinf_async.execution.crew import Crew
from rlinf_async.execution.definitions import Envs, Policy
from rlinf_async.execution.drawing import open_drawing
from rlinf_async.execution.hosts import Host
from rlinf_async.execution.layout import Cell
from rlinf_async.execution.roles import role_reference
from rlinf_async.execution.weights import ring_rows, weights_fields
from rlinf_async.scheduling.ledger import Ledger
from rlinf_async.scheduling.placement import HostPlan

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run


class WorkerBuilder:
    """Creates the render, rollout and train workers of one crew."""

    def __init__(
        self,
        run: Run,
        crew: Crew,
        policy: Policy,
        envs: Envs,
        ledger: Ledger,
        roles: Mapping[str, str] | None = None,
    ) -> None:
        """`roles`: workers that others play than those of these names, by role."""
        self._run, self._crew, self._ledger = run, crew, ledger
        self._roles = roles or {}
        self._policy, self._envs = policy, envs
        self._start_s = run.options.start_timeout_s

    async def build(self, segments: RowPool, horizon: int) -> RowPool:
        """Create all workers side by side and share the rows; returns the pool of weights."""
        crew = self._crew
        drawing = await open_drawing(self._run, crew, self._envs)
        async with asyncio.TaskGroup() as group:
            described = group.create_task(self._create_train())
            for plan, host in crew.with_role("render"):
                arguments = self._render_arguments(plan, drawing)
                group.create_task(self._create(host, "render", arguments))
            for plan, host in crew.with_role("rollout"):
                arguments = self._rollout_arguments(plan, horizon)
                group.create_task(self._create(host, "rollout", arguments))
            group.create_task(crew.connect())
            group.create_task(crew.start_user_workers(segments))
        weights = await crew.make_pool(
            "weights",
            weights_fields(described.result()["fields"]),
            ring_rows(self._ledger.max_lag),
        )
        async with asyncio.TaskGroup() as group:
            for plan in crew.placement.hosts:
                for pool in (segments, weights):
                    group.create_task(crew.host(plan).map_pool(pool))
        return weights

    async def _create(self, host: Host, role: str, arguments: dict[str, Any]) -> None:
        if role == "render":
            limits = {"limit_s": self._run.options.env_timeout_s, "first_s": self._start_s}
            await host.call("host", "watch", limits, deadline_s=self._start_s)
        reference = role_reference(self._roles.get(role, role))
        command = {"name": role, "reference": reference, "arguments": arguments}
        await host.call("host", "create", command, deadline_s=self._start_s)

    async def _create_train(self) -> dict[str, Any]:
        host = self._crew.host(self._crew.placement.train_host)
        options = self._run.options
        arguments = {
            **self.gradient_arguments(),
            "run_seed": options.seed,
            "dumps": str(self._run.folder.path / "dumps"),
            "init_from": None if options.init_from is None else str(options.init_from),
        }
        await self._create(host, "train", arguments)
        described: dict[str, Any] = await host.call(
            "train", "describe", {}, deadline_s=self._start_s
        )
        return described

    def gradient_arguments(self) -> dict[str, Any]:
        """What a gradient worker is made with."""
        return {
            "policy": self._policy.factory,
            "spaces": self._envs.spaces.to_json(),
            "normalize": self._policy.normalize_observations,
            "iterations": self._ledger.iterations,
            "max_lag": self._ledger.max_lag,
            "lag": self._run.options.lag,
        }

    def _render_arguments(self, plan: HostPlan, drawing: dict[str, Any] | None) -> dict[str, Any]:
        cells = {str(c.number): [c.first_slot, c.slots] for c in self._cells_of(plan)}
        return {
            "env": self._envs.env,
            "run_seed": self._run.options.seed,
            "cells": cells,
            "squash": self._policy.squash,
            "drawing": drawing,
        }

    def _rollout_arguments(self, plan: HostPlan, horizon: int) -> dict[str, Any]:
        cells = self._cells_of(plan)
        placement, options = self._crew.placement, self._run.options
        return {
            "policy": self._policy.factory,
            "spaces": self._envs.spaces.to_json(),
            "normalize": self._policy.normalize_observations,
            "horizon": horizon,
            "run_seed": options.seed,
            "cells": {str(cell.number): cell.slots for cell in cells},
            "render_hosts": {
                str(cell.number): placement.render_host(cell.number).name for cell in cells
            },
            "free_lag": options.lag == "free",
            "deadline_s": options.reply_timeout_s,
            "merged": None
            if options.deterministic
            else {"most_slots": options.merge_slots, "wait_s": options.merge_wait_ms / 1e3},
        }

    def _cells_of(self, plan: HostPlan) -> list[Cell]:
        return [cell for cell in self._envs.cells if cell.number in plan.cells]
