"""What a user watches while a run goes on.

The frames themselves are drawn in `frame` (a terminal) and `line` (everything else).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Literal, Protocol, TextIO

from rlinf_async.cli.line import status_line
from rlinf_async.execution.logs import get_logger
from rlinf_async.execution.status import RunStatus

log = get_logger()

StatusSource = Callable[[], RunStatus]

BUSY_SHARE = 0.02
"""A frame is followed by a pause of at least its cost divided by this: 5 ms give 4 Hz."""


class Display(Protocol):
    """Shows a run until it is cancelled. Runs on the controller's loop, so frames are cheap."""

    async def show(self, status: StatusSource) -> None:
        """Call `status` now and then and show it; ends only by cancellation."""
        ...


class RichDisplay:
    """A panel that is redrawn in place, at most `rate_hz` times a second."""

    def __init__(self, *, rate_hz: float = 4.0) -> None:
        self._pause_s = 1.0 / rate_hz

    async def show(self, status: StatusSource) -> None:
        """Draw until cancelled; the last frame stays on the screen."""
        from rich.live import Live

        from rlinf_async.cli.frame import Painter

        painter = Painter()
        # No refresh thread: it would draw at any time, in the middle of the loop's work.
        with Live(auto_refresh=False, transient=False) as live:
            try:
                while True:
                    begun_s = time.thread_time()
                    live.update(painter.paint(status(), width=live.console.width), refresh=True)
                    cost_s = time.thread_time() - begun_s
                    await asyncio.sleep(max(self._pause_s, cost_s / BUSY_SHARE))
            finally:
                live.update(painter.paint(status(), width=live.console.width))


class PlainDisplay:
    """One line at once, one every `interval_s` seconds, and one at the end."""

    def __init__(self, *, interval_s: float = 5.0, out: TextIO | None = None) -> None:
        self._interval_s = interval_s
        self._out = out

    async def show(self, status: StatusSource) -> None:
        """Print until cancelled."""
        try:
            while True:
                self._print(status())
                await asyncio.sleep(self._interval_s)
        finally:
            self._print(status())

    def _print(self, status: RunStatus) -> None:
        try:
            print(status_line(status), file=self._out or sys.stdout, flush=True)
        except OSError as error:
            # The reader of a pipe has gone (`... | head`); the run itself is fine.
            log.warning("progress_line_lost", error=repr(error))


class NoDisplay:
    """Shows nothing."""

    async def show(self, status: StatusSource) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


def choose(
    progress: Literal["auto", "rich", "plain", "none"], *, out: TextIO | None = None
) -> Display:
    """The display that `--progress` names; `auto` looks at whether output is a terminal."""
    if progress == "none":
        return NoDisplay()
    if progress == "rich" or (progress == "auto" and _can_redraw(out or sys.stdout)):
        return RichDisplay()
    return PlainDisplay()


def _can_redraw(out: TextIO) -> bool:
    encoding = (getattr(out, "encoding", None) or "").lower().replace("-", "")
    return out.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and encoding == "utf8"
