"""The hosts of a placement, started together, and the rows that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf_async.communication.fields import Field, Layout
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import BadInput
from rlinf_async.execution.definitions import Envs
from rlinf_async.execution.drawing import DRAW
from rlinf_async.execution.hosts import START_DEADLINE_S, Cluster, Host
from rlinf_async.execution.local_host import LocalHost
from rlinf_async.execution.references import needs_script
from rlinf_async.hardware.devices import memory_available_bytes, raise_file_limit
from rlinf_async.scheduling.arrangements import while_training
from rlinf_async.scheduling.placement import HostPlan, Placement

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run

FILES_PER_HOST = 11
"""Descriptors that the controller holds for one host: pidfd, link, board, trace, and their kin."""
FILES_OF_CONTROLLER = 64
CLOSE_BUDGET_S = 6.0


class Crew:
    """Starts, connects and ends the hosts of one placement."""

    def __init__(self, run: Run, placement: Placement, envs: Envs | None = None) -> None:
        """`envs` tells in which interpreter hosts that render must run."""
        self.placement = placement
        self._interpreter = None if envs is None else envs.interpreter
        self._script_for_envs = envs is None or needs_script(envs.env)
        self._run = run
        self._hosts: dict[str, Host] = {}
        self._cluster: Cluster | None = None
        self._pools: list[RowPool] = []
        run.watched.hosts = lambda: set(self._hosts.values())
        run.watched.cores = lambda: {plan.name: plan.cores for plan in self.placement.hosts}
        run.watched.cores_beside = lambda: while_training(self.placement)
        for worker in run.workers:
            worker.opening = True
        raise_file_limit(FILES_OF_CONTROLLER + FILES_PER_HOST * len(placement.hosts))

    def check_memory(self, fields: Sequence[Field], rows: int) -> None:
        """Refuse a pool that cannot fit before anything is started."""
        needed, free = Layout(fields).row_bytes * rows, memory_available_bytes()
        if needed > free:
            raise BadInput(
                "row pool segments",
                "too little memory",
                expected=f"{needed:,} bytes ({rows} rows)",
                got=f"{free:,} bytes free",
                fix="use fewer environments, a shorter horizon or a smaller max_lag",
            )

    async def make_pool(self, name: str, fields: Sequence[Field], rows: int) -> RowPool:
        """A pool with its memory filled, off the loop."""
        poison = self._run.options.poison
        pool = await asyncio.to_thread(RowPool.create, name, fields, rows, poison=poison)
        self._pools.append(pool)
        return pool

    async def start(self) -> None:
        """Start every host and wait until all have said hello."""
        if self.placement.mode == "serial":
            plan = self.placement.hosts[0]
            local = LocalHost(plan.name, self._run.recorder)
            self._hosts = {
                name: local for name in (plan.name, *(w.name for w in self._run.workers))
            }
            return
        run = self._run
        self._cluster = Cluster(run.runtime_folder, run.folder.logs, run.script, run.watched)
        for plan in self.placement.hosts:
            self._hosts[plan.name] = self._cluster.spawn(
                plan.name, roles=plan.roles, cores=plan.cores, **self._python_of(plan.roles)
            )
        for worker in run.workers:
            self._hosts[worker.name] = self._cluster.spawn(
                worker.name, roles=(worker.name,), cores=run.cores, **worker.python()
            )
        await self._cluster.ready()

    async def start_user_workers(self, pool: RowPool) -> None:
        """Create the user's own workers in their hosts; they may read segments' rows."""
        for worker in self._run.workers:
            host = self._hosts[worker.name]
            command = {
                "name": worker.name,
                "reference": worker.reference,
                "arguments": worker.arguments,
            }
            await host.call("host", "create", command, deadline_s=self._run.options.start_timeout_s)
            await host.map_pool(pool)
            worker.settle(host)

    async def add(self, name: str, role: str, envs: Envs) -> Host:
        """One more host for `envs`, on all cores of the run; in serial mode the one there is."""
        if self._cluster is None:
            return self.host(self.placement.hosts[0])
        python: dict[str, Any] = {}
        if envs.interpreter is not None:
            python = {"interpreter": envs.interpreter, "script": needs_script(envs.env)}
        host = self._cluster.spawn(name, roles=(role,), cores=self._run.cores, **python)
        self._hosts[name] = host
        await self._cluster.ready()
        return host

    def _python_of(self, roles: Sequence[str]) -> dict[str, Any]:
        """What `Cluster.spawn` must know of a host that may have to run elsewhere."""
        if self._interpreter is None or not {"render", DRAW, "evaluate"} & set(roles):
            return {}
        return {"interpreter": self._interpreter, "script": self._script_for_envs}

    async def watch(self) -> None:
        """Endless: raises the first loss of a host."""
        if self._cluster is None:
            await asyncio.Event().wait()
        else:
            await self._cluster.watch()

    async def connect(self) -> None:
        """Set up direct links from the central policy's host to every render host."""
        if self.placement.policy != "central" or self._cluster is None:
            return
        address = self._run.runtime_folder.socket_address("policy")
        policy = self.host(self.placement.rollout_host(0))
        await policy.call("link", "listen", {"address": address}, deadline_s=START_DEADLINE_S)
        for plan in self.placement.hosts:
            if "render" in plan.roles:
                arguments = {"address": address, "peer": policy.name}
                await self.host(plan).call(
                    "link", "connect", arguments, deadline_s=START_DEADLINE_S
                )

    def socket_path(self, name: str) -> str:
        """The place of a socket of that name in the run's private folder."""
        return self._run.runtime_folder.socket_address(name).removeprefix("ipc://")

    def host(self, plan: HostPlan) -> Host:
        """The running host of a plan."""
        return self._hosts[plan.name]

    def find(self, name: str) -> Host | None:
        """The running host of that name; None before it is started."""
        return self._hosts.get(name)

    def with_role(self, role: str) -> list[tuple[HostPlan, Host]]:
        """The hosts that play `role`."""
        return [(p, self._hosts[p.name]) for p in self.placement.hosts if role in p.roles]

    def cpu_s(self) -> float:
        """CPU seconds of all host processes so far."""
        return sum(host.cpu_s() for host in set(self._hosts.values()))

    def pool_bytes(self) -> int:
        """Shared memory of all pools."""
        return sum(pool.descriptor.total_bytes for pool in self._pools)

    def peak_bytes(self) -> dict[str, int]:
        """The largest resident size that each host has had."""
        return {name: host.peak_bytes() for name, host in self._hosts.items()}

    def doing(self) -> dict[str, str]:
        """What each host does now."""
        return {name: host.doing() for name, host in self._hosts.items()}

    def stage_totals(self) -> dict[str, dict[str, float]]:
        """Seconds per stage and kind of all host processes."""
        return {} if self._cluster is None else self._cluster.stage_totals()

    async def close(self) -> None:
        """End all hosts, then let go of the rows."""
        if self._cluster is not None:
            await self._cluster.close()
        else:
            for host in set(self._hosts.values()):
                await host.close()
        for pool in self._pools:
            pool.close()
