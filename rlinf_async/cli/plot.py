"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

STEPS, RETURN, THROUGHPUT = "env_steps", "return_mean", "env_steps_per_s"


def draw_learning_curve(metrics_jsonl: Path, png: Path) -> bool:
    """Draw return and throughput over env steps; False if there is nothing to draw.

    A last line that was cut off by a crash is left out. Raises ImportError without matplotlib and
    OSError if a file cannot be read or written.
    """
    rows = _read(metrics_jsonl)
    if not rows:
        return False
    # The object interface and not pyplot: no global state, no display, any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    returns, throughput = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    _panel(returns, rows, RETURN, label="return (last 20 episodes)", color="tab:blue")
    _panel(throughput, rows, THROUGHPUT, label="env steps / s", color="tab:green")
    throughput.set_xlabel("env steps")
    throughput.set_ylim(bottom=0)
    returns.set_title(metrics_jsonl.absolute().parent.name, fontsize=10, loc="left")
    figure.savefig(png)
    return True


def _panel(axes: Any, rows: Sequence[dict[str, Any]], key: str, *, label: str, color: str) -> None:
    points = [(row[STEPS], row[key]) for row in rows if isinstance(row.get(key), int | float)]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, color=color, linewidth=1.5, marker="o" if len(points) < 2 else "")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row.get(STEPS), int | float):
            rows.append(row)
    return rows
