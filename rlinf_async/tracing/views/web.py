"""`attach --web`: the live view as a page, served on loopback to whoever has its address.

The address holds a random word, for every user of the machine reaches loopback; requests that
name another host are refused, so that no other page in the browser can read it. Read-only.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from rlinf_async.tracing.account import stages_of
from rlinf_async.tracing.client import Viewer
from rlinf_async.tracing.diagnosis import diagnose
from rlinf_async.tracing.lanes import Slice, slices, stage_waits
from rlinf_async.tracing.reading import Capture, ProcessTrace
from rlinf_async.tracing.views.pieces import SPANS, STATES, colour
from rlinf_async.tracing.views.story import story

LONGEST_S = 60.0


def page_state(capture: Capture, seconds: float) -> dict[str, Any]:
    """What the page draws; times are microseconds before the capture's end."""
    stages = stages_of(capture, recent=True)
    found = diagnose(capture)
    status = capture.status
    verdict = [f"{each.kind}: {each.sentence}" for each in found]
    if not found:
        verdict = [story(capture)]
    return {
        "run": capture.run,
        "seconds": seconds,
        "status": {**status["status"], "losses": {}},
        "max_lag": status["max_lag"],
        "dropped": status["dropped"],
        "hosts": status["hosts"],
        "streams": status["streams"],
        "history": status["history"][-240:],
        "verdict": verdict,
        "healthy": not found,
        "stages": [
            {
                "name": name,
                "shares": stage.shares(),
                "waits": [
                    [state, on, spent_s / max(stage.wall_s, 1e-9)]
                    for (state, on), spent_s in stage.spent_s.items()
                ],
            }
            for name, stage in stages.items()
        ],
        "processes": [_process(trace, capture.taken_ns) for trace in capture.processes],
    }


def _process(trace: ProcessTrace, taken_ns: int) -> dict[str, Any]:
    rows = [
        _row(f"{trace.threads[thread]}{f' ({lane + 1})' if lane else ''}", mine, taken_ns)
        for (thread, lane), mine in _by_lane(slices(trace)).items()
    ]
    waits = [
        {**_row(f"{stage} waits", found, taken_ns), "waits": True}
        for stage, found in sorted(stage_waits(trace).items())
    ]
    return {"name": trace.process, "pid": trace.pid, "rows": [*waits, *rows]}


def _by_lane(found: list[Slice]) -> dict[tuple[int, int], list[Slice]]:
    lanes: dict[tuple[int, int], list[Slice]] = {}
    for each in found:
        lanes.setdefault((each.thread, each.lane), []).append(each)
    return dict(sorted(lanes.items()))


def _row(label: str, found: list[Slice], taken_ns: int) -> dict[str, Any]:
    """Columns, not records: a hundred thousand slices are a few arrays."""
    names = sorted({each.name for each in found})
    number = {name: at for at, name in enumerate(names)}
    return {
        "label": label,
        "names": names,
        "colours": [_colour(name) for name in names],
        "depths": 1 + max((each.depth for each in found), default=0),
        "begin": [(each.begin_ns - taken_ns) // 1000 for each in found],
        "end": [(each.end_ns - taken_ns) // 1000 for each in found],
        "name": [number[each.name] for each in found],
        "depth": [each.depth for each in found],
        "segments": {at: each.segments for at, each in enumerate(found) if each.segments},
    }


def _colour(name: str) -> str:
    return STATES.get(name.partition(":")[0]) or colour(name)


class PageServer(ThreadingHTTPServer):
    """Serves one viewer's run; `address` is for the user alone."""

    daemon_threads = True

    def __init__(self, viewer: Viewer, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._viewer, self._lock = viewer, Lock()
        self.word = secrets.token_urlsafe(16)
        page = resources.files("rlinf_async.tracing.views").joinpath("page.html").read_text()
        legend = json.dumps({"states": STATES, "spans": SPANS})
        self.page = page.replace("/*LEGEND*/ {}", legend).encode()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}/{self.word}/"

    def state(self, seconds: float) -> bytes:
        """The newest state as JSON; of a run that has ended, its last one."""
        with self._lock:
            alive = self._viewer.pump()
            taken = self._viewer.capture(seconds)
        return orjson.dumps(
            {**page_state(taken, seconds), "ended": not alive}, option=orjson.OPT_NON_STR_KEYS
        )


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """The page, or its state."""
        asked = urlsplit(self.path)
        if self.headers.get("Host") != f"127.0.0.1:{self.server.server_port}":
            self._answer(421, "text/plain", b"not for this host")
        elif asked.path == f"/{self.server.word}/":
            self._answer(200, "text/html; charset=utf-8", self.server.page)
        elif asked.path == f"/{self.server.word}/state":
            self._answer(
                200, "application/json", self.server.state(_seconds(parse_qs(asked.query)))
            )
        else:
            self._answer(404, "text/plain", b"nothing here")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(content)


def _seconds(query: Mapping[str, list[str]]) -> float:
    try:
        return min(max(float(query["seconds"][0]), 0.1), LONGEST_S)
    except (KeyError, ValueError):
        return 5.0
