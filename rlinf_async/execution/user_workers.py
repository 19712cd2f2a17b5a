"""Workers of the user's own: declared before the pipeline opens, called from the script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rlinf_async.communication.deadlines import deadline
from rlinf_async.errors import BadInput
from rlinf_async.execution.hosts import Host
from rlinf_async.execution.records import Batch, Segment, record_to_json
from rlinf_async.execution.references import describe, name_of, needs_script, resolve_name
from rlinf_async.execution.worker import Worker


class WorkerHandle:
    """A worker in a host of its own; `await handle.method(key=value)` runs the method there.

    Arguments and results are plain values. A `Segment` or `Batch` argument arrives with views of
    its rows in `arrays`.
    """

    def __init__(
        self,
        name: str,
        reference: str,
        arguments: dict[str, Any],
        *,
        deadline_s: float,
        start_s: float,
        interpreter: str | None = None,
    ) -> None:
        self.interpreter = interpreter
        self.name, self.reference, self.arguments = name, reference, arguments
        self._deadline_s, self._start_s = deadline_s, start_s
        self.opening = False
        """Whether a pipeline is starting the worker's host."""
        self._host: Host | None = None
        self._ready = asyncio.Event()

    def python(self) -> dict[str, Any]:
        """What `Cluster.spawn` must know if the host has to run in another interpreter."""
        if self.interpreter is None:
            return {}
        script = needs_script({"worker": self.reference, **self.arguments})
        return {"interpreter": self.interpreter, "script": script}

    def settle(self, host: Host) -> None:
        """The worker lives in `host` now; calls that waited for it go on."""
        self._host = host
        self._ready.set()

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)

        async def call(**arguments: Any) -> Any:
            return await self.call(method, arguments)

        return call

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Run `method(**arguments)` in the worker.

        Raises:
            WorkerFailed: the method raised.
            WorkerLost: the worker's process ended.
            PeerTimeout: no answer within `--reply-timeout-s`.
        """
        if not self.opening:
            raise BadInput(
                f"{self.name}.{method}",
                "was called before the worker has a host",
                fix="call it from a stage, or after pipe.rollout(...)",
            )
        async with deadline(self._start_s, waiting_for=f"worker {self.name} to start"):
            await self._ready.wait()
        assert self._host is not None
        plain = {key: _plain(value, f"{self.name}.{method}") for key, value in arguments.items()}
        return await self._host.call(self.name, method, plain, deadline_s=self._deadline_s)


def worker_reference(worker: type | str) -> str:
    """`module:qualname` of a worker class; BadInput for what no host could import."""
    if isinstance(worker, str):
        return worker
    return name_of(worker, where="run.worker")


def check_worker(reference: str) -> dict[str, str]:
    """Import what `reference` names (in a probe process) and check that it is a worker class."""
    found = resolve_name(reference, where="run.worker")
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise BadInput(
            "run.worker", f"{reference!r}", expected="a subclass of rlinf_async.Worker", got=found
        )
    return {"worker": reference}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Segment | Batch):
        return record_to_json(value)
    return describe(value, where=where)
