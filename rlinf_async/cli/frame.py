"""The panel of the rich display.

Lines are put together by hand from styled pieces: rich's tables and layouts measure every cell
several times and cost a multiple of it per frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.box import ROUNDED
from rich.panel import Panel
from rich.text import Text

from rlinf_async.cli.line import chosen_losses, duration, number, remaining_s
from rlinf_async.execution.status import RunStatus

KINDS = {
    "working": "green",
    "input": "yellow",
    "space": "magenta",
    "weights": "cyan",
    "devices": "blue",
    "paused": "bright_black",
}
"""Colour of each kind of time."""

LABEL_WIDTH = 12
BAR_WIDTH = 28
WIDEST = 100
SPARKS = "▁▂▃▄▅▆▇█"
HISTORY = 48


class Painter:
    """Draws statuses; keeps the history of the return for its curve."""

    def __init__(self) -> None:
        self._returns: list[float] = []
        self._last_iteration = -1
        self._seen, self._every = 0, 1

    def paint(self, status: RunStatus, *, width: int) -> Panel:
        """One frame for a terminal of `width` columns."""
        self._remember(status)
        width = min(width, WIDEST)
        rows = Text(no_wrap=True, overflow="ellipsis")
        rows.append_text(_bar_row(status, width - 4))
        for row in self._rows(status, width - 4):
            rows.append("\n")
            rows.append_text(row)
        title = Text(status.title, style="bold", no_wrap=True, overflow="ellipsis")
        subtitle = Text(f"{status.phase} · {duration(status.elapsed_s)}", style="dim")
        return Panel(
            rows,
            box=ROUNDED,
            title=title,
            title_align="left",
            subtitle=subtitle,
            subtitle_align="right",
            border_style="bright_black",
            padding=(0, 1),
            width=width,
        )

    def _remember(self, status: RunStatus) -> None:
        if status.return_mean is None or status.iteration == self._last_iteration:
            return
        self._last_iteration = status.iteration
        self._seen += 1
        if self._seen % self._every:
            return
        self._returns.append(status.return_mean)
        if len(self._returns) == 2 * HISTORY:
            # Half the resolution from now on, for old and new alike: the curve spans the whole run.
            self._returns = self._returns[1::2]
            self._every *= 2

    def _rows(self, status: RunStatus, width: int) -> Iterator[Text]:
        yield _speed_row(status)
        yield _return_row(status, self._returns)
        if status.losses:
            yield _loss_row(status.losses, width)
        low, mean, high = status.lag
        lag = f"{low} / {mean:.2f} / {high} versions"
        yield _pairs("lag", [("min / avg / max", lag)])
        if status.plan:
            yield _pairs("plan", [("", status.plan)])
        for name, (fill, capacity) in status.streams.items():
            yield _stream_row(name, fill, capacity)
        if status.stages:
            yield from _stage_rows(status.stages)
        yield from _host_rows(status, width)


def sparkline(values: Sequence[float], width: int) -> str:
    """The curve of `values` in at most `width` characters, from their least to their greatest."""
    if not values:
        return ""
    count = min(width, len(values))
    picked = [values[(index + 1) * len(values) // count - 1] for index in range(count)]
    low, high = min(picked), max(picked)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in picked)


def shares_to_cells(shares: Mapping[str, float], width: int) -> list[tuple[str, int]]:
    """Cells of a stacked bar by kind; they fill `width` where the shares sum to 1."""
    cells, total, drawn = [], 0.0, 0
    for kind in [*KINDS, *(kind for kind in shares if kind not in KINDS)]:
        total += max(shares.get(kind, 0.0), 0.0)
        upto = min(round(total * width), width)
        if upto > drawn:
            cells.append((kind, upto - drawn))
        drawn = max(drawn, upto)
    return cells


def _label(name: str) -> Text:
    short = name if len(name) < LABEL_WIDTH else name[: LABEL_WIDTH - 2] + "…"
    # A piece of its own: a style of the whole Text would colour what is appended later.
    return Text(no_wrap=True).append(short.ljust(LABEL_WIDTH), style="bold cyan")


def _pairs(name: str, pairs: Sequence[tuple[str, str]]) -> Text:
    row = _label(name)
    for index, (key, value) in enumerate(pairs):
        row.append(("   " if index else "") + (f"{key} " if key else ""), style="dim")
        row.append(value)
    return row


def _bar_row(status: RunStatus, width: int) -> Text:
    share = min(status.iteration / max(status.iterations, 1), 1.0)
    eta_s = remaining_s(status)
    eta = "" if eta_s is None else f"   eta {duration(eta_s)}"
    tail = f"  {share:4.0%}   {status.iteration:,}/{status.iterations:,}{eta}"
    length = max(width - len(tail), 10)
    filled = int(share * length)
    row = Text(no_wrap=True).append("━" * filled, style="green")
    row.append("━" * (length - filled), style="bright_black")
    row.append(tail, style="bold")
    return row


def _speed_row(status: RunStatus) -> Text:
    pairs = [("total", f"{status.env_steps:,}"), ("per second", f"{status.env_steps_per_s:,.0f}")]
    row = _pairs("env steps", [*pairs, ("episodes", f"{status.episodes:,}")])
    style = "red" if status.loop_lag_ms >= 50.0 else "dim"
    row.append(f"   loop late {status.loop_lag_ms:.0f} ms", style=style)
    return row


def _return_row(status: RunStatus, history: Sequence[float]) -> Text:
    row = _label("return")
    if status.return_mean is None:
        row.append("no episode has ended yet", style="dim")
        return row
    row.append(f"{status.return_mean:,.1f}".ljust(10), style="bold")
    row.append(sparkline(history, HISTORY), style="green")
    return row


def _loss_row(losses: Mapping[str, float], width: int) -> Text:
    pairs: list[tuple[str, str]] = []
    room = width - LABEL_WIDTH
    for name, value in chosen_losses(losses):
        text = number(value)
        room -= len(name) + len(text) + 4
        if room < 0:
            break
        pairs.append((name, text))
    return _pairs("losses", pairs)


def _stream_row(name: str, fill: int, capacity: int) -> Text:
    filled = round(BAR_WIDTH * min(fill / max(capacity, 1), 1.0))
    row = _label(name)
    row.append("█" * filled, style="blue")
    row.append("░" * (BAR_WIDTH - filled), style="bright_black")
    row.append(f"  {fill}/{capacity}", style="dim")
    return row


def _stage_rows(stages: Mapping[str, Mapping[str, float]]) -> Iterator[Text]:
    seen = dict.fromkeys(KINDS, 0.0)
    for name, shares in stages.items():
        row = _label(name)
        drawn = 0
        for kind, count in shares_to_cells(shares, BAR_WIDTH):
            row.append("█" * count, style=KINDS.get(kind, "white"))
            drawn += count
        row.append(" " * (BAR_WIDTH - drawn + 2))
        for kind, share in sorted(shares.items(), key=lambda item: -item[1])[:3]:
            seen[kind] = seen.get(kind, 0.0) + share
            if share >= 0.005:
                row.append(f"{kind} {share:.0%}  ", style=KINDS.get(kind, "white"))
        yield row
    legend = _label("")
    for kind, share in seen.items():
        if share > 0.0:
            legend.append("■ ", style=KINDS.get(kind, "white"))
            legend.append(f"{kind}  ", style="dim")
    yield legend


def _host_rows(status: RunStatus, width: int) -> Iterator[Text]:
    """Hosts side by side, as many in a row as there is room for."""
    row, used = _label("hosts"), LABEL_WIDTH
    for name, what in status.hosts.items():
        length = len(name) + len(what) + 4
        if used > LABEL_WIDTH and used + length > width:
            yield row
            row, used = _label(""), LABEL_WIDTH
        row.append(f"{name} ", style="bold")
        row.append(f"{what}   ", style="dim")
        used += length
    if used > LABEL_WIDTH:
        yield row
