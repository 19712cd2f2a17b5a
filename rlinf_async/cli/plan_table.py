"""Candidates of a plan as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def candidates_table(candidates: Sequence[Mapping[str, Any]], chosen: str) -> Table:
    """One row each: what is predicted, what was measured or simulated, where the time goes."""
    parts = list(dict.fromkeys(name for each in candidates for name in each["parts_s"]))
    second = "simulated s" if any("simulated_s" in each for each in candidates) else "measured s"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("plan", no_wrap=True)
    for name in ("predicted s", second, *(f"{part} s" for part in parts), "GiB", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for each in candidates:
        mark = "<- chosen" if each["plan"] == chosen else each.get("refused", "")
        cells = [
            _predicted(each),
            _seconds(each.get("measured_s", each.get("simulated_s"))),
            *(_seconds(each["parts_s"].get(part)) for part in parts),
            _memory(each.get("memory_bytes", ())),
        ]
        style = "bold green" if each["plan"] == chosen else ""
        table.add_row(each["plan"], *cells, Text(mark), style=style)
    return table


def _predicted(each: Mapping[str, Any]) -> str:
    text = _seconds(each["predicted_s"])
    if "low_s" in each:
        text += f" ({_seconds(each['low_s'])} to {_seconds(each['high_s'])})"
    return f"~{text}" if each.get("extrapolated") else text


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _memory(sizes: Sequence[float]) -> str:
    return " ".join(f"{size / 2**30:.1f}" for size in sizes) or "-"
