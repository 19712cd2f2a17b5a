"""`attach --web`: the live view as a page, served on loopback to whoever has its address.

The address holds a random word, for every user of the machine reaches loopback; requests that
name another host are refused, so that no other page in the browser can read it. Read-only.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from rlinf_async.tracing.client import Viewer
from rlinf_async.tracing.recorder import CELLS
from rlinf_async.tracing.views.metrics import CONTENT_TYPE, to_prometheus
from rlinf_async.tracing.views.page_state import minute_state, page_state
from rlinf_async.tracing.views.pieces import SPANS, STATES

LONGEST_S = 60.0
JUDGE_EVERY_S = 2.0
POLICY = "default-src 'self' 'unsafe-inline'; img-src data:"
SCRIPTS = ("timeline.js", "panels.js", "page.js")


def whole_page() -> str:
    """The page as one text: nothing of it is asked for afterwards."""
    folder = resources.files("rlinf_async.tracing.views").joinpath("page")
    page = folder.joinpath("page.html").read_text()
    legend = {"states": STATES, "spans": SPANS, "cells": CELLS}
    script = "\n".join(folder.joinpath(name).read_text() for name in SCRIPTS)
    page = page.replace("/*STYLE*/", folder.joinpath("page.css").read_text())
    return page.replace("/*LEGEND*/ {}", json.dumps(legend)).replace("/*SCRIPT*/", script)


class PageServer(ThreadingHTTPServer):
    """Serves one viewer's run; `address` is for the user alone."""

    daemon_threads = True

    def __init__(self, viewer: Viewer, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._viewer, self._lock = viewer, Lock()
        self._minute: dict[str, Any] = {}
        self._judged_s = float("-inf")
        self.word = secrets.token_urlsafe(16)
        self.page = whole_page().encode()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}/{self.word}/"

    def state(self, seconds: float) -> bytes:
        """The newest state as JSON; of a run that has ended, its last one."""
        with self._lock:
            alive = self._viewer.pump()
            if time.monotonic() - self._judged_s > JUDGE_EVERY_S:
                self._minute = minute_state(self._viewer.capture(LONGEST_S))
                self._judged_s = time.monotonic()
            taken = page_state(self._viewer.capture(seconds))
            document = {**taken, **self._minute, "seconds": seconds, "ended": not alive}
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)

    def metrics(self) -> bytes:
        """The newest status for Prometheus; of a run that has ended, its last one."""
        with self._lock:
            self._viewer.pump()
            return to_prometheus(self._viewer.capture(0.0)).encode()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """The page, or its state."""
        asked = urlsplit(self.path)
        if self.headers.get("Host") != f"127.0.0.1:{self.server.server_port}":
            self._answer(421, "text/plain", b"not for this host")
        elif asked.path == f"/{self.server.word}/":
            self._answer(200, "text/html; charset=utf-8", self.server.page)
        elif asked.path == f"/{self.server.word}/metrics":
            self._answer(200, CONTENT_TYPE, self.server.metrics())
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
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content)


def _seconds(query: Mapping[str, list[str]]) -> float:
    try:
        return min(max(float(query["seconds"][0]), 0.1), LONGEST_S)
    except (KeyError, ValueError):
        return 5.0
