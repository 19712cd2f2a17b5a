"""Captures made by hand: recorders whose clock a test moves."""

from __future__ import annotations

from rlinf_async.tracing.reading import Capture, RingReader, capture
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.tracing.ring import block_bytes
from tests.fixtures.clock import FakeClock


class Machine:
    """Some processes on one clock, in milliseconds."""

    def __init__(self) -> None:
        self.clock = FakeClock(1.0)
        self.recorders: dict[str, Recorder] = {}
        self._readers: list[RingReader] = []

    def process(self, name: str) -> Recorder:
        memory = bytearray(block_bytes(1024))
        self._readers.append(RingReader(memory))
        self.recorders[name] = Recorder(name, 1024, clock_ns=self.clock.now_ns, memory=memory)
        return self.recorders[name]

    def span(self, process: str, name: str, ms: float, *segments: tuple[int, int]) -> None:
        """A span of `ms` milliseconds that handles segments (cell, batch)."""
        with self.recorders[process].span(name, 1):
            for cell, batch in segments:
                self.recorders[process].flow("segment", cell, batch)
            self.clock.tick_ns(round(ms * 1e6))

    def capture(self, **status: object) -> Capture:
        return capture(
            self._readers,
            now_ns=self.clock.now_ns(),
            seconds=3600.0,
            run={"id": "r"},
            status=status,
        )


def journey() -> Machine:
    """Two segments of one batch; the second never reaches the learner."""
    machine = Machine()
    for name in ("controller", "host-0", "train"):
        machine.process(name)
    controller = machine.recorders["controller"]
    for cell in (0, 1):
        with controller.span("rollout", 8):
            machine.span("host-0", "render.begin", 1, (cell, 3))
            machine.span("host-0", "rollout.open", 1, (cell, 3))
    with machine.recorders["train"].span("train.train"):
        machine.span("train", "train.gather", 2, (0, 3))
    controller.counter("loop lag ms", 1.5)
    controller.instant("published", 4)
    with controller.stage("train").waiting("input", on="batches"):
        machine.clock.tick_ns(5_000_000)
    return machine
