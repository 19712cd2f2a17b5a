"""The page of `attach --web`: who may read it, and what it is told."""

from __future__ import annotations

import http.client
import threading
from contextlib import contextmanager

import orjson
import pytest

from rlinf_async.tracing.recorder import segment_number
from rlinf_async.tracing.views.page_state import page_state
from rlinf_async.tracing.views.web import PageServer
from tests.tracing.captures import journey
from tests.tracing.test_terminal import ByHand


@contextmanager
def served(tmp_path):
    """A server in a thread; yields it and what asks it."""
    server = PageServer(ByHand(tmp_path / "logs"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def ask(path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    try:
        yield server, ask
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_only_who_knows_the_word_may_read(tmp_path):
    with served(tmp_path) as (server, ask):
        assert server.address.startswith("http://127.0.0.1:")
        assert ask("/")[0] == 404
        assert ask("/wrong/state")[0] == 404
        assert ask(f"/{server.word}/", Host="elsewhere.example")[0] == 421
        code, page = ask(f"/{server.word}/")
        assert code == 200
        assert b"<canvas" in page
        assert b"/*LEGEND*/ {}" not in page
        # Offline: nothing of the page comes from elsewhere.
        assert b"http://" not in page
        assert b"https://" not in page


def test_the_page_is_told_the_state_of_the_run(tmp_path):
    with served(tmp_path) as (server, ask):
        code, text = ask(f"/{server.word}/state?seconds=2")
        assert code == 200
        state = orjson.loads(text)
        assert (state["seconds"], state["ended"], state["run"]["id"]) == (2.0, False, "ppo-1")
        assert state["status"]["iteration"] == 12
        assert [process["name"] for process in state["processes"]] == ["controller", "host-0"]
        assert orjson.loads(ask(f"/{server.word}/state?seconds=x")[1])["seconds"] == 5.0


def test_slices_come_in_columns_with_their_segments(tmp_path):
    taken = journey().capture(**ByHand(tmp_path).capture(1.0).status)
    taken.run["run_dir"] = str(tmp_path)
    processes = {each["name"]: each for each in page_state(taken)["processes"]}
    waits, calls, counter = processes["controller"]["rows"]
    assert (waits["label"], waits["names"]) == ("train", ["input: batches"])
    assert (counter["kind"], counter["label"], counter["value"]) == (
        "counter",
        "loop lag ms",
        [1.5],
    )
    assert [name for _, name in processes["controller"]["instants"]] == ["published"]
    assert calls["names"] == ["rollout"]
    (row,) = processes["host-0"]["rows"]
    assert len(row["begin"]) == len(row["end"]) == len(row["name"]) == len(row["depth"]) == 4
    assert row["segments"][0] == (segment_number(0, 3),)
    (row,) = processes["train"]["rows"]
    assert row["depths"] == 2
    assert row["end"][0] - row["begin"][0] == pytest.approx(2000)
