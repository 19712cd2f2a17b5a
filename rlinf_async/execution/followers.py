"""The workers that compute shards of the learner's gradient: who they are, and their part in train.

A learner whose gradient comes in shards leads them from step to step; the controller only says who
takes part in an iteration, which changes no bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from rlinf_async.errors import EngineError
from rlinf_async.execution.crew import Crew
from rlinf_async.execution.hosts import Host
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.roles import role_reference

log = get_logger()

WORKER = "gradient"
FOLLOWER_KNOWS_S = 2.0
"""How long a follower's own error may take to arrive after the learner's."""


class Followers:
    """Gradient workers on the hosts of a crew, none until `open`."""

    def __init__(self, crew: Crew, *, limit_s: float) -> None:
        """`limit_s` is for everything that happens at the start."""
        self._crew, self._limit_s = crew, limit_s
        self._numbers: dict[str, int] = {}

    async def open(
        self, names: Sequence[str], settings: dict[str, Any], arguments: dict[str, Any]
    ) -> None:
        """Let the hosts `names` follow the learner, as many as have a shard to compute.

        Args:
            settings: of `pipe.train`, in words.
            arguments: of the gradient worker.
        """
        names = names[: settings["shards"] - 1]
        train = self._crew.host(self._crew.placement.train_host)
        address = self._crew.socket_path("gradient")
        if not names or not await train.call(
            "train", "lead", {"address": address}, deadline_s=self._limit_s
        ):
            return
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(names, 1):
                group.create_task(self._join(name, number, address, settings, arguments))
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        log.info("gradient_is_spread", shards=settings["shards"], hosts=list(names))

    @property
    def count(self) -> int:
        """How many take part under the placement in force: followers 1 to `count`."""
        return len([name for name in self._crew.placement.gradient if name in self._numbers])

    async def led(self, leading: Awaitable[Any], *, limit_s: float) -> Any:
        """The result of `leading`, the learner's call, with the present followers taking part.

        Raises what went wrong first: where a follower gave up, its own error.
        """
        async with asyncio.TaskGroup() as group:
            following = [
                group.create_task(self._follow(host, limit_s), name=f"gradient-{host.name}")
                for host in self._present()
            ]
            try:
                return await leading
            except EngineError:
                # In a group the first error wins, and a follower that gave up knows more.
                await asyncio.wait(following, timeout=FOLLOWER_KNOWS_S)
                raise

    def _present(self) -> list[Host]:
        found = [self._crew.find(name) for name in self._crew.placement.gradient]
        return [host for host in found if host is not None and host.name in self._numbers]

    async def _follow(self, host: Host, limit_s: float) -> None:
        await host.call(WORKER, "follow", {"limit_s": limit_s}, deadline_s=limit_s)

    async def _join(
        self,
        name: str,
        number: int,
        address: str,
        settings: dict[str, Any],
        arguments: dict[str, Any],
    ) -> None:
        host = self._crew.find(name)
        assert host is not None, f"no host {name}"
        command = {"name": WORKER, "reference": role_reference(WORKER), "arguments": arguments}
        await host.call("host", "create", command, deadline_s=self._limit_s)
        join = {
            "settings": settings,
            "address": address,
            "number": number,
            "limit_s": self._limit_s,
        }
        await host.call(WORKER, "join", join, deadline_s=self._limit_s)
