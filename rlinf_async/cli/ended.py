"""What a run folder tells of a run that goes on no more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rlinf_async.cli.line import duration

TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that has ended, by its folder."""

    folder: Path
    exit_code: int | None
    """None: it ended without a word, as by SIGKILL."""
    error: str
    last_row: dict[str, Any]
    """Its last metrics; empty before the first iteration."""

    @property
    def is_well(self) -> bool:
        """Whether it did all that it was to do."""
        return self.exit_code == 0

    def __str__(self) -> str:
        if self.exit_code is None:
            return (
                "failed: its controller ended without a word, as SIGKILL or lack of memory ends it"
                f"{self._progress(', after ')}; the log ends where it did: {self.folder / 'logs'}"
            )
        if not self.is_well:
            return f"failed: {self.error}{self._progress(', after ')}"
        return f"finished{self._progress(': ')}"

    def _progress(self, before: str) -> str:
        row = self.last_row
        if not row:
            return ""
        count = row["iteration"]
        said = f"{before}{count:,} iteration{'s' if count != 1 else ''}"
        said += f" in {duration(row['time_s'])}"
        said += f", {row['env_steps']:,} environment steps"
        mean = row.get("return_mean")
        return said if mean is None else f"{said}, mean return {mean:,.1f}"


def ended_run(given: str | None) -> EndedRun | None:
    """The run of this folder; None if it is no run folder."""
    folder = None if given is None else Path(given).expanduser().absolute()
    if folder is None or not (folder / "run.json").is_file():
        return None
    ends = [each for each in _tail(folder / "logs" / "controller.jsonl") if _ends(each)]
    last = ends[-1] if ends else {}
    return EndedRun(
        folder=folder,
        exit_code=last.get("exit_code"),
        error=str(last.get("error", "")),
        last_row=next(iter(_tail(folder / "metrics.jsonl")[-1:]), {}),
    )


def _ends(entry: dict[str, Any]) -> bool:
    return entry.get("event") == "run_ended"


def _tail(file: Path) -> list[dict[str, Any]]:
    """The last complete lines of a file of JSON lines; empty if there is none."""
    try:
        with file.open("rb") as lines:
            lines.seek(max(lines.seek(0, 2) - TAIL_BYTES, 0))
            read = lines.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in read:
        try:
            found.append(dict(orjson.loads(line)))
        except ValueError:
            continue
    return found
