"""What a worker is: a class whose methods a host runs, one at a time, on its work thread.

The execution layer knows workers only through this module and through dotted names. Plain methods
run on the host's work thread and may compute for as long as they like; `async def` methods run on
the host's loop and must not compute: they wait for other hosts and hand work to `compute`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from rlinf_async.tracing.recorder import Recorder

Result = TypeVar("Result")


class WorkerContext(Protocol):
    """What the host offers to the workers that live in it."""

    host: str
    """Name of the host."""
    recorder: Recorder

    def rows(self, pool: str, row: int) -> Mapping[str, np.ndarray]:
        """Views of one row of a shared pool by field name; writing them writes the row."""
        ...

    def sibling(self, worker: str) -> Any | None:
        """The worker of that name in the same host, by reference; None if it lives elsewhere."""
        ...

    def lent(self, borrower: str, lender: str, spent_ns: int) -> None:
        """`borrower` ran the sibling `lender`'s code for so long: count it as the lender's work."""
        ...

    async def compute(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` on the host's work thread."""
        ...

    def call(
        self, host: str, worker: str, method: str, arguments: dict[str, Any], *, deadline_s: float
    ) -> Awaitable[Any]:
        """Call a worker of another host over a direct link that the controller has set up."""
        ...

    def ask(
        self, host: str, worker: str, method: str, arguments: dict[str, Any], *, deadline_s: float
    ) -> Any:
        """`call` from the work thread, which it blocks until the answer is there."""
        ...


class Worker:
    """Base of all workers; a subclass takes its context first and then plain keyword arguments.

    ```python
    class Scorer(Worker):
        def __init__(self, context: WorkerContext, *, bonus: float) -> None:
            super().__init__(context)
            self.bonus = bonus

        def score(self, value: float) -> float:
            return value + self.bonus
    ```
    """

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def close(self) -> None:
        """Release what the worker holds; called once, on the work thread, before the host ends."""
