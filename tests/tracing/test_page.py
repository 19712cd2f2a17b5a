"""The page of `attach --web` in a real browser: what a user does with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import orjson
import pytest

from rlinf_async.tracing.reading import RECORD_TYPE, Capture, ProcessTrace
from rlinf_async.tracing.recorder import KINDS, segment_number
from rlinf_async.tracing.views.web import PageServer
from tests.fixtures import chromium
from tests.tracing.captures import journey
from tests.tracing.test_terminal import ByHand

pytestmark = pytest.mark.skipif(
    chromium.executable() is None, reason=f"there is no Chromium: {chromium.INSTALL}"
)

SPANS = 100_000
FRAME_MS = 50.0
"""A frame must not take longer, drawn without a graphics card on a core that others use too."""
SEGMENT = segment_number(0, 3)


class Shown(ByHand):
    """The journey of two segments, and a process with a hundred thousand spans where asked for."""

    def __init__(self, logs) -> None:
        super().__init__(logs)
        self.machine = journey()
        self.many = False

    def capture(self, seconds: float) -> Capture:
        taken = super().capture(seconds)
        plan = {"iteration": 3, "chosen": "hybrid", "reason": "measured <b>0.3</b> s"}
        seconds_of = {"predicted_s": {"hybrid": [0.3, 0.2, 0.4]}, "measured_s": {"hybrid": 0.3}}
        folder = self.run["run_dir"]
        with open(f"{folder}/plans.jsonl", "wb") as file:
            file.write(orjson.dumps({**plan, **seconds_of}))
        more = [_many(taken.taken_ns)] if self.many else []
        return replace(taken, processes=[*taken.processes, *more])


def _many(taken_ns: int) -> ProcessTrace:
    """Calls of a hundred steps over a minute, as a host records them."""
    records = np.zeros(SPANS, RECORD_TYPE)
    at = np.arange(SPANS)
    records["number"], records["kind"], records["name"] = at + 1, KINDS.index("span"), at % 100 > 0
    step_ns = 60 * 10**9 // SPANS
    records["begin_ns"] = taken_ns - (SPANS - at) * step_ns
    records["end_ns"] = records["begin_ns"] + np.where(at % 100 > 0, step_ns // 2, 100 * step_ns)
    return ProcessTrace(
        process="host-9",
        pid=9,
        began_ns=0,
        names=["rollout.collect", "render.step"],
        threads=["work-host-9"],
        records=records,
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Shown:
    return Shown(tmp_path_factory.mktemp("run") / "logs")


@pytest.fixture
def page(shown, tmp_path) -> Iterator[chromium.Chromium]:
    """The page, loaded."""
    server = PageServer(shown)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with chromium.Chromium(tmp_path) as browser:
            browser.open(server.address)
            browser.until("timeline.frames > 0 && state !== null")
            yield browser
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text(page: chromium.Chromium, name: str) -> str:
    return str(page.run(f"document.getElementById('{name}').innerText"))


def place(page: chromium.Chromium, name: str) -> tuple[float, float]:
    """Where on the screen the first slice of that name is."""
    x, y = page.run(
        "(() => { const box = timeline.canvas.getBoundingClientRect();"
        f" for (const r of timeline.rows) for (let n = 0; n < (r.name || []).length; n++)"
        f" if (r.names[r.name[n]] === '{name}') return ["
        "box.left + (timeline.x(r.begin[n]) + timeline.x(r.end[n])) / 2,"
        " box.top + r.y + 16 * r.depth[n] + 8]; })()"
    )
    return float(x), float(y)


def test_the_page_is_loaded_zoomed_and_shows_the_way_of_a_segment(page):
    assert text(page, "id") == "ppo-1"
    assert "12 of 250" in text(page, "iterations")
    assert "batches" in text(page, "streams")
    # Text of a run is never markup.
    assert "measured <b>0.3</b> s" in text(page, "plans")

    # The slices of the journey are milliseconds long, and the page shows seconds: zoom.
    before = page.run("timeline.to - timeline.from")
    x, y = place(page, "train.gather")
    for _ in range(10):
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
        x, _ = place(page, "train.gather")
    assert page.run("held") is True
    page.until(f"timeline.to - timeline.from < {before} / 50")
    page.until("document.getElementById('range').innerText.includes(' ms until')")

    page.click(*place(page, "train.gather"))
    assert page.run("timeline.chosen") == SEGMENT
    assert "the way of cell 0, batch 3" in text(page, "journey-title")
    stations = page.run("timeline.way.map(s => [s.name, s.process, s.call])")
    assert stations == [
        ["render.begin", "host-0", "render.begin"],
        ["rollout.open", "host-0", "rollout.open"],
        ["train.gather", "train", "train.train"],
    ]
    assert text(page, "stations").count("later") == 2

    page.run("choose(null)")
    assert page.run("document.getElementById('journey').hidden") is True
    page.run("hold(false)")
    page.until("timeline.chosen === null && !held")


def test_a_hundred_thousand_spans_move_smoothly(page, shown):
    shown.many = True
    try:
        page.run("hold(true)")
        page.run(f"load({60})")
    finally:
        shown.many = False
    spans = page.run("timeline.rows.reduce((sum, r) => sum + (r.end || []).length, 0)")
    assert spans >= SPANS
    page.run("timeline.look(timeline.end - 60e6, timeline.end)")
    # Zoom in on the middle and out again, moving, one step a frame.
    drawn = page.run(
        "new Promise(done => { timeline.drawn_ms.length = 0; let step = 0; const next = () => {"
        " if (step++ === 60) return done(timeline.drawn_ms.slice().sort((a, b) => a - b));"
        " timeline.zoom(step <= 30 ? .8 : 1.25); timeline.pan(.02); requestAnimationFrame(next);"
        " }; next(); })"
    )
    assert len(drawn) >= 30
    median_ms, p90_ms = drawn[len(drawn) // 2], drawn[len(drawn) * 9 // 10]
    print(f"{spans:,} spans: a frame takes {median_ms:.1f} ms, {p90_ms:.1f} ms at the 90th percent")
    assert median_ms < FRAME_MS
