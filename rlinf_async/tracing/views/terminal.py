"""`attach` in a terminal: a live view of a run, drawn from its processes' own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Static

from rlinf_async.hardware.stacks import stacks_of
from rlinf_async.tracing.account import CONTROLLER, stages_of
from rlinf_async.tracing.client import Viewer
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.views import pieces
from rlinf_async.tracing.views.story import task_lines
from rlinf_async.tracing.views.timeline import timeline

FRAME_S = 0.25
VERDICT_EVERY = 4
"""Frames between two verdicts: each looks at a minute of all processes."""
WINDOWS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
LOG_LINES = 12


class RunView(App[None]):
    """One run, until it ends or the user leaves; the run goes on."""

    CSS = """
    Screen { background: #0d1117; }
    Static { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    #verdict { padding: 0 2; text-wrap: wrap; }
    #head { padding: 0 1; }
    #numbers { padding: 0 1; }
    .box { border: round #30363d; border-title-color: #58a6ff; border-title-style: bold;
           border-subtitle-color: #7d8590; padding: 0 1; }
    #timeline { height: auto; max-height: 60%; overflow-y: auto; }
    #legend { padding: 0 2; }
    #below { height: 1fr; min-height: 8; }
    #where { width: 55%; height: 100%; }
    #details { width: 45%; height: 100%; }
    #log { height: 9; }
    #stacks { height: 1fr; display: none; overflow-y: auto; }
    #keys { dock: bottom; background: #161b22; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "leave", "leave"),
        Binding("space", "pause", "pause"),
        Binding("up", "select(-1)", "process"),
        Binding("down", "select(1)", "process"),
        Binding("plus,equals_sign", "zoom(-1)", "zoom"),
        Binding("minus", "zoom(1)", "zoom"),
        Binding("left", "pan(-1)", "back"),
        Binding("right", "pan(1)", "forth"),
        Binding("s", "stacks", "stacks"),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "python -m rlinf_async attach"

    def __init__(
        self,
        viewer: Viewer,
        *,
        window_s: float = 2.0,
        drawn: Callable[[], object] = lambda: None,
    ) -> None:
        """`drawn` is called once, after the first frame."""
        super().__init__()
        self._drawn = drawn
        self._viewer = viewer
        self._window = WINDOWS_S.index(window_s)
        self._selected, self._back_s = 0, 0.0
        self._paused: Capture | None = None
        self.frames = 0

    def compose(self) -> ComposeResult:
        """Boxes that `draw` fills."""
        yield Static(id="head")
        yield Static(id="numbers")
        yield Static(id="timeline", classes="box")
        yield Static(id="legend")
        yield Static(id="verdict")
        with Horizontal(id="below"):
            yield Static(id="where", classes="box")
            yield Static(id="details", classes="box")
        yield Static(id="stacks", classes="box")
        yield Static(id="log", classes="box")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Draw at once, then four times a second."""
        self.query_one("#where").border_title = "where the time goes"
        self.query_one("#log").border_title = "log"
        self.call_after_refresh(self.draw)
        self.set_interval(FRAME_S, self.tick)

    def on_resize(self) -> None:
        """The columns change with the width."""
        self.draw()

    def tick(self) -> None:
        """Take what the run has sent, and draw unless the view is held."""
        if not self._viewer.pump() and self._paused is None:
            self.action_pause()
        if self._paused is None:
            self.draw()

    def draw(self) -> None:
        """One frame."""
        taken = self._paused or self._viewer.capture(self._seconds + 1.0)
        if "status" not in taken.status:
            return
        width = max(self.size.width - pieces.LABEL_WIDTH - 9, 10)
        until_ns = taken.taken_ns - round(self._back_s * 1e9)
        rows = timeline(taken, until_ns=until_ns, seconds=self._seconds, width=width)
        names = self._names(taken)
        self._selected %= len(names)
        chosen = names[self._selected]
        hosts = {host["name"]: host for host in taken.status["hosts"]}
        hosts.setdefault(CONTROLLER, {"roles": "controller", "pid": taken.run["pid"]})
        status = taken.status
        self._show("head", pieces.head(status, taken.run, self.size.width))
        self._show("numbers", pieces.numbers(status, status["history"]))
        self._show("timeline", pieces.timeline_text(rows, hosts, chosen, width))
        self._show("legend", pieces.legend())
        stages = stages_of(taken, recent=True)
        self._show("where", pieces.where(stages).append("\n").append_text(pieces.streams(status)))
        if self.frames % VERDICT_EVERY == 1:
            self._judge()
        self._show("details", pieces.details(taken, chosen, self._seconds))
        self._show("log", pieces.log_lines(self._logs, LOG_LINES - 5))
        self._titles(chosen, status)
        self._show("keys", self._keys())
        self.frames += 1
        if self.frames == 1:
            self._drawn()

    def _judge(self) -> None:
        minute = self._paused or self._viewer.capture(WINDOWS_S[-1])
        self._show("verdict", pieces.verdict(minute))

    def action_leave(self) -> None:
        """Close the stacks, or the view."""
        stacks = self.query_one("#stacks")
        if stacks.display:
            stacks.display, self.query_one("#below").display = False, True
        else:
            self.exit()

    def action_pause(self) -> None:
        """Hold the view, or let it go on; the run does not notice."""
        self._paused = self._viewer.capture(WINDOWS_S[-1]) if self._paused is None else None
        self._back_s = 0.0
        self.draw()

    def action_select(self, by: int) -> None:
        """Choose another process."""
        self._selected += by
        self.draw()

    def action_zoom(self, by: int) -> None:
        """A shorter or a longer time."""
        self._window = min(max(self._window + by, 0), len(WINDOWS_S) - 1)
        self.draw()

    def action_pan(self, by: int) -> None:
        """Into the past, or back; holds the view."""
        if self._paused is None:
            self.action_pause()
        self._back_s = min(max(self._back_s - by * self._seconds / 4, 0.0), WINDOWS_S[-1])
        self.draw()

    def action_stacks(self) -> None:
        """Show the stacks of the chosen process, read off the loop."""
        taken = self._viewer.capture(0.1)
        chosen = self._names(taken)[self._selected]
        pids = {host["name"]: host["pid"] for host in taken.status["hosts"] if host["pid"]}
        pid = pids.get(chosen, taken.run["pid"])
        self.query_one("#below").display = False
        box = self.query_one("#stacks", Static)
        box.display, box.border_title = True, f"stacks of {chosen} (esc closes)"
        box.update("reading ...")
        tasks = task_lines(taken.status.get("tasks", [])) if chosen == CONTROLLER else []
        self.run_worker(lambda: self._read_stacks(chosen, pid, tasks), thread=True, exclusive=True)

    def _read_stacks(self, process: str, pid: int, tasks: Sequence[str]) -> None:
        text = stacks_of(pid, self._logs / f"{process}.err")
        if tasks:
            text = "\n".join(["coroutines:", *(f"  {line}" for line in tasks), "", text])
        self.call_from_thread(self._show, "stacks", pieces.plain(text))

    @property
    def _seconds(self) -> float:
        return WINDOWS_S[self._window]

    @property
    def _logs(self) -> Path:
        return Path(self._viewer.run["run_dir"]) / "logs"

    def _names(self, taken: Capture) -> list[str]:
        return [trace.process for trace in taken.processes] or [CONTROLLER]

    def _show(self, name: str, content: Any) -> None:
        self.query_one(f"#{name}", Static).update(content)

    def _titles(self, chosen: str, status: dict[str, Any]) -> None:
        box = self.query_one("#timeline")
        held = "" if self._paused is None else f" (held, {self._back_s:.1f} s back)"
        box.border_title = f"the last {self._seconds:g} s{held}"
        box.border_subtitle = f"{status['status']['title']}"
        self.query_one("#details").border_title = chosen

    def _keys(self) -> Any:
        return pieces.keys(
            {
                "q": "leave",
                "space": "go on" if self._paused is not None else "hold",
                "↑↓": "process",
                "+ -": "zoom",
                "← →": "back and forth",
                "s": "stacks",
            }
        )
