"""A run for other people's tools: Prometheus's text format, and OTLP spans to a real receiver."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rlinf_async.cli import trace
from rlinf_async.errors import BadInput, PeerGone
from rlinf_async.tracing.views.metrics import to_prometheus
from tests.tracing.captures import journey
from tests.tracing.test_devices import CREDITS
from tests.tracing.test_terminal import ByHand
from tests.tracing.test_web import served


def by_hand(tmp_path):
    taken = ByHand(tmp_path / "logs").capture(1.0)
    taken.status["credits"] = CREDITS
    return taken


def test_every_sample_has_its_family_and_what_is_unknown_is_left_out(tmp_path):
    taken = by_hand(tmp_path)
    taken.status["status"].update(return_mean=None, losses={'a"b\\': float("nan")})
    lines = to_prometheus(taken).splitlines()
    families = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    samples = [line for line in lines if not line.startswith("#")]
    assert {line.partition("{")[0] for line in samples} == set(families)
    assert families["rlinf_env_steps_total"] == "counter"
    assert 'rlinf_env_steps_total{run="ppo-1"} 4096' in samples
    assert 'rlinf_segments{run="ppo-1",state="running"} 1' in samples
    assert (
        'rlinf_stage_seconds_total{run="ppo-1",stage="rollout",state="weights",on="publish"} 4.0'
        in samples
    )
    assert 'rlinf_training{run="ppo-1",name="a\\"b\\\\"} NaN' in samples
    assert "rlinf_episode_return_mean" not in families


def test_metrics_are_served_to_who_knows_the_word(tmp_path):
    with served(tmp_path) as (server, ask):
        code, text = ask(f"/{server.word}/metrics")
        assert code == 200
        assert b'rlinf_iterations_total{run="ppo-1"} 12' in text
        assert ask("/metrics")[0] == 404


@contextmanager
def receiver(code: int):
    """A collector on loopback: its address, and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_reach_a_collector_with_parents_and_links():
    otlp = pytest.importorskip(
        "rlinf_async.tracing.views.otlp",
        reason="opentelemetry is not installed: pip install 'rlinf_async[otlp]'",
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with receiver(200) as (address, bodies):
        sent = otlp.send(journey().capture(), address)
    request = ExportTraceServiceRequest()
    request.ParseFromString(b"".join(_plain(body) for body in bodies))
    spans, processes = {}, set()
    for resource in request.resource_spans:
        named = {each.key: each.value.string_value for each in resource.resource.attributes}
        processes.add(named["service.instance.id"])
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            spans.setdefault(span.name, []).append(span)
    assert processes == {"controller", "host-0", "train"}
    assert sent == sum(map(len, spans.values())) == 8
    assert len({span.trace_id for mine in spans.values() for span in mine}) == 1
    (gather,), (call,) = spans["train.gather"], spans["train.train"]
    assert gather.parent_span_id == call.span_id
    assert gather.end_time_unix_nano - gather.start_time_unix_nano == 2_000_000
    assert [link.span_id for link in gather.links] == [spans["rollout.open"][0].span_id]


def _plain(body: bytes) -> bytes:
    import gzip

    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def test_a_collector_that_refuses_and_a_wrong_address_are_named():
    otlp = pytest.importorskip("rlinf_async.tracing.views.otlp", reason="no opentelemetry")
    with receiver(400) as (address, _), pytest.raises(PeerGone, match="0 of 8 were sent"):
        otlp.send(replace(journey().capture()), address)
    with pytest.raises(BadInput, match="no address"):
        trace.command(["--otlp", "localhost:4318"])
