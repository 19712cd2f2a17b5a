"""The viewer's end: finds this user's runs, connects to one, reads its processes' memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from rlinf_async.errors import BadInput, PeerTimeout, nearest
from rlinf_async.tracing import wire
from rlinf_async.tracing.reading import Capture, RingReader, capture

CONNECT_S = 2.0
ENDED = "`diagnose` says how; `trace` reads the last minute of a run that failed"
HISTORY = 600
"""Rows of the past that a viewer keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """A run of this user that goes on now."""

    folder: Path
    """Its private folder, where the socket lies."""
    id: str
    pid: int
    script: str | None
    run_dir: Path
    mode: str
    seed: int
    began_s: float
    """By `time.monotonic`, which all processes of a machine share."""

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s


def live_runs(parent: Path | None = None) -> list[RunCard]:
    """The runs of this user whose controller lives, the newest first."""
    ours = re.compile(rf"rlinf-{os.getuid()}-[0-9a-f]{{8}}")
    cards = []
    for path in (parent or Path(tempfile.gettempdir())).iterdir():
        if ours.fullmatch(path.name) and (card := _card(path)) is not None:
            cards.append(card)
    return sorted(cards, key=lambda card: -card.began_s)


def find_run(given: str | None, parent: Path | None = None) -> RunCard:
    """The live run with this id, the beginning of one, or this run folder; None: the only one.

    Raises:
        BadInput: there is none, or there are several.
    """
    cards = live_runs(parent)
    fix = "`python -m rlinf_async ps` lists them"
    if given is None:
        if len(cards) == 1:
            return cards[0]
        what = "no run is going on" if not cards else f"{len(cards)} runs are going on"
        raise BadInput("run", what, expected="one", fix=fix if cards else "")
    path = Path(given).expanduser().absolute()
    found = [card for card in cards if given in (card.id, str(card.pid)) or card.run_dir == path]
    found = found or [card for card in cards if card.id.startswith(given)]
    if not found and (path / "run.json").is_file():
        raise BadInput("run", f"{given} has ended", fix=ENDED)
    if len(found) != 1:
        what = f"{given!r} is no run that goes on" if not found else f"{given!r} may be several"
        raise BadInput("run", what, fix=nearest(given, [card.id for card in cards]) or fix)
    return found[0]


def _card(folder: Path) -> RunCard | None:
    try:
        document = orjson.loads((folder / wire.CARD).read_bytes())
        if not _is_held(folder) or document.pop("version") != wire.VERSION:
            return None
        return RunCard(folder=folder, **{**document, "run_dir": Path(document["run_dir"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_held(folder: Path) -> bool:
    """Whether the owner of the folder lives: it holds the lock."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


class Viewer:
    """A connection to a run; `pump` takes what has come, everything else looks at it."""

    def __init__(self, card: RunCard) -> None:
        self.card = card
        self.run: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.history: list[list[float]] = []
        self.ended = False
        self.readers: dict[str, RingReader] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)

    @classmethod
    def connect(cls, card: RunCard, *, limit_s: float = CONNECT_S) -> Self:
        """Connect and wait for the first status.

        Raises:
            PeerTimeout: the controller did not answer; its loop is stuck.
            BadInput: the run has ended, or is of another version.
        """
        viewer = cls(card)
        try:
            viewer._open(limit_s)
        except BaseException:
            viewer.close()
            raise
        return viewer

    def _open(self, limit_s: float) -> None:
        give_up_s = time.monotonic() + limit_s
        try:
            self._socket.connect(str(self.card.folder / wire.SOCKET))
        except OSError as cause:
            raise BadInput("run", f"{self.card.id} has ended") from cause
        while not self.status and not self.ended:
            self._socket.settimeout(max(give_up_s - time.monotonic(), 0.001))
            try:
                self._take()
            except TimeoutError as cause:
                raise PeerTimeout(
                    f"gave up after {limit_s:g} s waiting for the controller of {self.card.id} "
                    f"(pid {self.card.pid}) to answer: its loop is stuck; `python -m rlinf_async "
                    f"diagnose {self.card.id}` shows its stacks"
                ) from cause
        if self.ended:
            raise BadInput("run", f"{self.card.id} has ended")
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The socket's descriptor, to wait for."""
        return self._socket.fileno()

    def pump(self) -> bool:
        """Take everything that has come; False once the run has ended."""
        while not self.ended:
            try:
                self._take()
            except BlockingIOError:
                break
        return not self.ended

    def watch(self, seconds: float) -> None:
        """Keep taking what comes for so long, or until the run ends."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self.ended:
            self._socket.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                self._take()
        self._socket.setblocking(False)

    def capture(self, seconds: float) -> Capture:
        """What all processes recorded in the last `seconds`, and the newest status."""
        return capture(
            self.readers.values(),
            now_ns=time.perf_counter_ns(),
            seconds=seconds,
            run=self.run,
            status={**self.status, "history": self.history},
        )

    def close(self) -> None:
        """Leave; the run goes on."""
        self._socket.close()
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self) -> None:
        try:
            received = wire.receive(self._socket)
        except (ConnectionError, BrokenPipeError):
            received = None
        if received is None:
            self.ended = True
            return
        document, descriptor = received
        if document["kind"] == "process" and descriptor is not None:
            if document["process"] in self.readers:
                self.readers[document["process"]].close()
            self.readers[document["process"]] = RingReader.of_descriptor(descriptor)
        elif document["kind"] == "welcome":
            self._welcomed(document)
        elif document["kind"] == "status":
            self.status = document
            self.history = [*self.history, wire.history_row(document)][-HISTORY:]

    def _welcomed(self, document: dict[str, Any]) -> None:
        self.run, self.history = document["run"], document["history"]
        if self.run["version"] != wire.VERSION:
            raise BadInput(
                "run",
                "it speaks another version of the trace",
                expected=wire.VERSION,
                got=self.run["version"],
                fix="use the package that the run was started with",
            )


def each_viewer(
    cards: Sequence[RunCard], *, limit_s: float
) -> Iterator[tuple[RunCard, Viewer | None]]:
    """A connection to each run, one after the other; None where it cannot be had in time."""
    for card in cards:
        try:
            viewer = Viewer.connect(card, limit_s=limit_s)
        except (BadInput, PeerTimeout):
            yield card, None
            continue
        with viewer:
            yield card, viewer
