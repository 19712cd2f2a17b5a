"""Shows a run to viewers: a socket, the memory of its processes, and a status now and then.

Viewers read the processes' traces themselves, from memory that they are handed read-only; what a
run does for one is a small packet a few times a second. None of it ever waits for a viewer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rlinf_async.execution.coroutines import task_rows
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.telling import tell
from rlinf_async.tracing import wire
from rlinf_async.tracing.reading import Capture, RingReader, capture

if TYPE_CHECKING:
    from rlinf_async.execution.run import Run

log = get_logger()

TICK_S = 1.0
WATCHED_TICK_S = 0.25
"""How often a status is made while somebody looks; making one takes a millisecond or two."""
HISTORY = 240
"""Rows of the past that a viewer is shown at once: four minutes."""
FLIGHT_S = 60.0
FLIGHT_FILE = "flight.bin"
VIEWERS = 64


class TraceService:
    """One run's service; `serve` is endless."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._viewers: list[_Viewer] = []
        self._history: deque[list[float]] = deque(maxlen=HISTORY)
        self._status: dict[str, Any] = {}
        self._number = self.dropped = 0
        self._tasks: list[dict[str, Any]] = []
        self._tasks_s = -math.inf

    async def serve(self) -> None:
        """Accept viewers and tell them how the run goes, until cancelled."""
        folder = self._run.runtime_folder.path
        card = folder / f"{wire.CARD}.new"
        card.write_bytes(orjson.dumps(self.card()))
        server = wire.listen(folder)
        # The card comes last: who finds it can connect.
        card.rename(folder / wire.CARD)
        loop = asyncio.get_running_loop()
        loop.add_reader(server.fileno(), self._accept, server)
        try:
            while True:
                self._tick()
                await asyncio.sleep(WATCHED_TICK_S if self._viewers else TICK_S)
        finally:
            loop.remove_reader(server.fileno())
            server.close()
            for viewer in tuple(self._viewers):
                self._leave(viewer)

    def card(self) -> dict[str, Any]:
        """Who this run is."""
        run = self._run
        return {
            "version": wire.VERSION,
            "id": run.folder.path.name,
            "pid": os.getpid(),
            "script": None if run.script is None else str(run.script),
            "run_dir": str(run.folder.path),
            "mode": run.options.mode,
            "seed": run.options.seed,
            "began_s": time.monotonic() - run.progress.elapsed_s(),
        }

    def flight(self, failure: str) -> Path:
        """Write the last minute of every process into the run folder; blocks the thread."""
        readers = [RingReader(ring.memory) for ring in self._run.watched.rings.values()]
        taken: Capture = capture(
            readers,
            now_ns=time.perf_counter_ns(),
            seconds=FLIGHT_S,
            run=self.card(),
            status={**self._status, "failure": failure, "history": list(self._history)},
        )
        path = self._run.folder.path / FLIGHT_FILE
        taken.save(path)
        return path

    def _tick(self) -> None:
        run = self._run
        with run.recorder.span("trace.status"):
            self._status = self._look()
            self._note(self._status)
            for viewer in tuple(self._viewers):
                self._tell(viewer)

    def _look(self) -> dict[str, Any]:
        # Told with every status, so that the accounts of the stages are of the same moment.
        tell(self._run.recorder, command=self._run.progress.phase, command_age_s=0.0)
        watched, status = self._run.watched, dataclasses.asdict(self._run.status())
        self._number += 1
        if (now_s := time.monotonic()) - self._tasks_s >= TICK_S * 0.9:
            self._tasks, self._tasks_s = task_rows(asyncio.all_tasks()), now_s
        return {
            "kind": "status",
            "number": self._number,
            "at_ns": time.perf_counter_ns(),
            "status": status,
            "max_lag": watched.max_lag,
            "streams": watched.stream_rows(),
            "hosts": watched.host_rows(),
            "credits": watched.credits(),
            "tasks": self._tasks,
            "cpu_s": self._run.cpu_s(),
        }

    def _note(self, status: dict[str, Any]) -> None:
        """Keep the few numbers whose course matters, once a second."""
        if self._history and status["at_ns"] - self._history[-1][0] < TICK_S * 0.9e9:
            return
        self._history.append(wire.history_row(status))

    def _accept(self, server: socket.socket) -> None:
        try:
            accepted, _ = server.accept()
        except OSError:
            return
        if len(self._viewers) >= VIEWERS or not wire.is_owner(accepted):
            accepted.close()
            return
        accepted.setblocking(False)
        viewer = _Viewer(accepted)
        self._viewers.append(viewer)
        asyncio.get_running_loop().add_reader(accepted.fileno(), self._hear, viewer)
        log.info("viewer_came", viewers=len(self._viewers))
        viewer.offer({"kind": "welcome", "run": self.card(), "history": list(self._history)})
        self._status = self._look()
        self._tell(viewer)

    def _tell(self, viewer: _Viewer) -> None:
        """New processes first, then the status; what does not fit is dropped and counted."""
        for name, ring in self._run.watched.rings.items():
            if viewer.known.get(name) == ring.descriptor:
                continue
            descriptor = ring.open_read_only()
            try:
                if viewer.offer({"kind": "process", "process": name}, descriptor):
                    viewer.known[name] = ring.descriptor
            finally:
                os.close(descriptor)
        own = {"viewers": len(self._viewers), "dropped": viewer.dropped}
        if not viewer.offer({**self._status, **own}):
            self.dropped += 1
        if viewer.gone:
            self._leave(viewer)

    def _hear(self, viewer: _Viewer) -> None:
        if not viewer.answered():
            self._leave(viewer)

    def _leave(self, viewer: _Viewer) -> None:
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            asyncio.get_running_loop().remove_reader(viewer.socket.fileno())
            viewer.socket.close()
            log.info("viewer_left", viewers=len(self._viewers), dropped=viewer.dropped)


class _Viewer:
    """One viewer as the run sees it: what it knows, and how many answers it owes."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.known: dict[str, int] = {}
        self.dropped = self.owed = 0
        self.gone = False

    def offer(self, document: dict[str, Any], descriptor: int | None = None) -> bool:
        """Send it if the viewer has a credit left; False, and counted, if it is dropped."""
        if self.owed < wire.CREDITS and not self.gone:
            try:
                wire.send(self.socket, document, descriptor)
                self.owed += 1
                return True
            except BlockingIOError:
                pass
            except OSError:
                self.gone = True
        self.dropped += 1
        return False

    def answered(self) -> bool:
        """Take one answer; False if the viewer is gone or says what nobody asked for."""
        try:
            said = self.socket.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.owed -= 1
        return said == wire.ANSWER and self.owed >= 0
