"""The pieces of the terminal view, as styled text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.text import Text

from rlinf_async.cli.frame import sparkline
from rlinf_async.cli.line import duration
from rlinf_async.tracing.account import KINDS, Stage
from rlinf_async.tracing.devices import device_reports
from rlinf_async.tracing.diagnosis import diagnose
from rlinf_async.tracing.reading import Capture
from rlinf_async.tracing.views.log import newest_entries
from rlinf_async.tracing.views.story import story
from rlinf_async.tracing.views.timeline import Row, span_sums

HEIGHTS = " ▁▂▃▄▅▆▇█"
LABEL_WIDTH = 20
DEVICE_LINES = 4
BAR_WIDTH = 24
STATES = {
    "working": "#3fb950",
    "input": "#d29922",
    "space": "#db61a2",
    "weights": "#39c5cf",
    "devices": "#58a6ff",
    "paused": "#6e7681",
}
"""Colour of each state of a stage."""
SPANS = {
    "render.step": "#56d364",
    "render": "#2ea043",
    "rollout.act": "#79c0ff",
    "rollout": "#388bfd",
    "train.update": "#d2a8ff",
    "train": "#a371f7",
    "publish": "#ffa657",
}
"""Colour of a span by its name, or by what stands before the point."""
OTHERS = ("#f0883e", "#e3b341", "#f778ba", "#7ce38b", "#a5d6ff")
DIM, TEXT, BRIGHT = "#7d8590", "#c9d1d9", "#f0f6fc"
TRACK = "#161b22"


def colour(name: str) -> str:
    """The same for the same name, always."""
    known = SPANS.get(name) or SPANS.get(name.partition(".")[0])
    return known or OTHERS[sum(name.encode()) % len(OTHERS)]


def head(status: Mapping[str, Any], run: Mapping[str, Any], width: int) -> Text:
    """Title, progress, and the few numbers that say how it goes."""
    now = status["status"]
    share = min(now["iteration"] / max(now["iterations"], 1), 1.0)
    length = max(width - 74, 10)
    filled = round(share * length)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{run['id']}", style=f"bold {BRIGHT}")
    text.append(f"  {now['phase']} {duration(now['elapsed_s'])}   ", style=DIM)
    text.append("━" * filled, style=STATES["working"]).append(
        "━" * (length - filled), style="#30363d"
    )
    text.append(f"  {now['iteration']:,}/{now['iterations']:,}", style=TEXT)
    return text


def numbers(status: Mapping[str, Any], history: Sequence[Sequence[float]]) -> Text:
    """Speed, return, lag, loop lag, and what viewers cost."""
    now = status["status"]
    low, mean, high = now["lag"]
    text = Text(no_wrap=True, overflow="ellipsis")
    _pair(text, "steps/s", f"{now['env_steps_per_s']:,.0f}")
    text.append(f" {sparkline(_speeds(history), 16)}", style=STATES["working"])
    if now["return_mean"] is not None:
        _pair(text, "return", f"{now['return_mean']:,.1f}")
    _pair(text, "lag", f"{low}/{mean:.1f}/{high} of {status['max_lag']}")
    if now.get("plan"):
        _pair(text, "plan", now["plan"])
    late_ms = now["loop_lag_ms"]
    _pair(text, "loop late", f"{late_ms:.0f} ms", style="#f85149" if late_ms >= 50 else TEXT)
    _pair(text, "memory", f"{sum(h.get('rss_bytes', 0) for h in status['hosts']) / 2**20:,.0f} MiB")
    _pair(text, "dropped", str(status["dropped"]))
    return text


def _speeds(history: Sequence[Sequence[float]]) -> list[float]:
    """Steps per second between rows some apart: iterations come in lumps."""
    apart = 8
    pairs = zip(history, history[apart:], strict=False)
    return [(b[2] - a[2]) / max((b[0] - a[0]) * 1e-9, 1e-9) for a, b in pairs][-96:]


def _pair(text: Text, name: str, value: str, *, style: str = TEXT, gap: str = "   ") -> None:
    before = gap if len(text) and not text.plain.endswith("\n") else ""
    text.append(f"{before}{name} ", style=DIM).append(value, style=style)


def timeline_text(
    rows: Sequence[Row], hosts: Mapping[str, Mapping[str, Any]], selected: str, width: int
) -> Text:
    """The tree of processes with their stages and threads, each with its line."""
    text = Text(no_wrap=True)
    process = ""
    for row in rows:
        if row.process != process:
            process = row.process
            text.append_text(
                _process_line(process, hosts.get(process, {}), process == selected, width)
            )
        text.append(f"   {row.label[: LABEL_WIDTH - 4]:<{LABEL_WIDTH - 3}}", style=DIM)
        # Neighbours of one style are one piece: fewer pieces are drawn sooner.
        for style, glyphs in groupby((_cell(row, *cell) for cell in row.cells), key=itemgetter(0)):
            text.append("".join(glyph for _, glyph in glyphs), style=style)
        text.append(f" {row.busy:4.0%}\n", style=TEXT if row.busy >= 0.5 else DIM)
    text.rstrip()
    return text


def _cell(row: Row, what: str, part: float) -> tuple[str, str]:
    """Style and glyph of one column."""
    if not what:
        return f"on {TRACK}", " "
    if row.is_stage:
        return f"{STATES[what]} on {TRACK}", "▄"
    return f"{colour(what)} on {TRACK}", HEIGHTS[max(1, round(part * 8))]


def _process_line(name: str, host: Mapping[str, Any], selected: bool, width: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("▶ " if selected else "  ", style="#ffa657")
    text.append(
        f"{name:<{LABEL_WIDTH - 2}}", style=f"bold {BRIGHT}" if selected else f"bold {TEXT}"
    )
    told = [str(host["roles"])] if host.get("roles") else []
    told += [f"pid {host['pid']}"] if host.get("pid") else []
    told += [f"{host['rss_bytes'] / 2**20:,.0f} MiB"] if host.get("rss_bytes") else []
    if host.get("lost"):
        text.append(str(host["lost"])[: width - LABEL_WIDTH], style="bold #f85149")
    else:
        at = host.get("at_work") or ""
        long = f"{at} {host['at_work_s']:.1f} s" if at and host["at_work_s"] > 1.0 else ""
        text.append("  ".join(told), style=DIM).append(f"  {long}", style="#f85149")
    return text.append("\n")


def legend() -> Text:
    """What the colours mean."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for state in KINDS:
        text.append("▄▄ ", style=STATES[state]).append(f"{state}  ", style=DIM)
    text.append(" │  ", style="#30363d")
    for name in ("render.step", "rollout.act", "rollout", "train.update", "train"):
        text.append("██ ", style=colour(name)).append(f"{name}  ", style=DIM)
    return text


def where(stages: Mapping[str, Stage]) -> Text:
    """A bar for each stage, and its two greatest shares."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, stage in stages.items():
        text.append(f"{name[:16]:<17}", style=TEXT)
        drawn, total = 0, 0.0
        for kind in KINDS:
            total += max(stage.share(kind), 0.0)
            count = min(round(total * BAR_WIDTH), BAR_WIDTH) - drawn
            text.append("█" * count, style=STATES[kind])
            drawn += count
        text.append(" " * (BAR_WIDTH - drawn))
        waits = sorted(stage.spent_s.items(), key=lambda item: -item[1])[:2]
        for (state, on), spent_s in waits:
            if spent_s >= 0.05 * stage.wall_s:
                told = f"  {spent_s / stage.wall_s:.0%} {state}{f' {on}' if on else ''}"
                text.append(told, style=STATES[state])
        text.append("\n")
    return text


def verdict(capture: Capture) -> Text:
    """What is wrong, or else what the last minute was bound by, and where each device's time went.

    Meant for a capture of a minute.
    """
    text = Text(overflow="fold")
    found = diagnose(capture)
    for each in found[:2]:
        text.append(f"{each.kind}: {each.sentence}\n", style="#f85149")
    if not found and (told := story(capture)):
        text.append(f"{told}\n", style=BRIGHT)
    for device in device_reports(capture)[:DEVICE_LINES]:
        text.append(f"{device}\n", style=DIM)
    text.rstrip()
    return text


def streams(status: Mapping[str, Any]) -> Text:
    """How full each stream is, and where the segments are."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for each in status["streams"]:
        filled = round(16 * each["fill"] / each["capacity"])
        text.append(f"{each['name'][:12]:<13}", style=TEXT)
        text.append("█" * filled, style="#58a6ff").append("█" * (16 - filled), style="#21262d")
        text.append(f"  {each['fill']}/{each['capacity']}", style=TEXT)
        text.append(f"  {each['put']:,} in\n", style=DIM)
    credits = status.get("credits")
    if credits:
        for name in ("queued", "running", "trained", "dropped"):
            loud = name == "dropped" and credits[name]
            _pair(text, name, f"{credits[name]:,}", style="#f85149" if loud else TEXT, gap="  ")
        if "rows" in credits:
            _pair(text, "rows free", f"{credits['rows_free']}/{credits['rows']}", gap="  ")
    return text


def details(capture: Capture, process: str, seconds: float) -> Text:
    """What took the time of one process."""
    trace = capture.process(process)
    text = Text(no_wrap=True, overflow="ellipsis")
    if trace is None:
        return text.append("no trace of this process yet", style=DIM)
    state = trace.state
    text.append(f"{state.get('command', '')}", style=BRIGHT)
    text.append(f"  cpu {state.get('cpu_s', 0.0):,.1f} s", style=DIM)
    text.append(f"  {len(trace.records):,} records\n", style=DIM)
    text.append(f"{'span':<22}{'count':>7}{'mean':>12}{'longest':>12}{'share':>7}\n", style=DIM)
    for each in span_sums(trace, capture.taken_ns - round(seconds * 1e9))[:8]:
        text.append(f"{each.name[:21]:<22}", style=colour(each.name))
        text.append(f"{each.count:>7,}", style=TEXT)
        text.append(f"{each.total_s / each.count * 1e3:>9.2f} ms", style=TEXT)
        text.append(f"{each.longest_s * 1e3:>9.1f} ms", style=TEXT)
        text.append(f"{each.total_s / seconds:>7.0%}\n", style=TEXT)
    return text


def log_lines(logs: Path, count: int) -> Text:
    """The newest lines of the controller's log."""
    text = Text(no_wrap=True, overflow="ellipsis")
    colours = {"warning": "#d29922", "error": "#f85149"}
    for entry in newest_entries(logs, count):
        text.append(f"{entry['at']} ", style=DIM)
        text.append(f"{entry['event']} ", style=colours.get(entry["level"], TEXT))
        text.append(f"{entry['told']}\n", style=DIM)
    return text


def plain(text: str) -> Text:
    """Text as it is, without any markup."""
    return Text(text, style=TEXT)


def keys(meanings: Mapping[str, str]) -> Text:
    """The keys at the foot."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for key, meaning in meanings.items():
        text.append(f" {key} ", style="bold #58a6ff").append(f"{meaning}  ", style=DIM)
    return text
