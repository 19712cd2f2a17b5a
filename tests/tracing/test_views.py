"""Files for trace viewers, read back with their own message classes."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.tracing.lanes import slices
from rlinf_async.tracing.paths import segment_paths
from rlinf_async.tracing.recorder import Recorder, segment_number
from rlinf_async.tracing.views.chrome import to_chrome
from rlinf_async.tracing.views.perfetto import to_perfetto
from rlinf_async.tracing.views.protobuf import varint
from tests.tracing.captures import Machine, journey


def parsed(capture):
    """The packets as Perfetto's message classes read them."""
    module = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        reason="Perfetto's message classes are not installed: pip install perfetto",
    )
    trace = module.Trace()
    assert trace.ParseFromString(to_perfetto(capture)) > 0
    return module, trace.packet


def test_processes_threads_and_counters_are_named():
    _, packets = parsed(journey().capture())
    described = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    names = [d.process.process_name for d in described if d.HasField("process")]
    assert names == ["controller", "host-0", "train"]
    assert {d.thread.thread_name for d in described if d.HasField("thread")} == {"MainThread"}
    assert [d.name for d in described if d.HasField("counter")] == ["loop lag ms"]
    assert "train waits" in [d.name for d in described]
    assert len({d.uuid for d in described}) == len(described)


def test_slices_are_paired_nested_and_in_order_on_each_track():
    module, packets = parsed(journey().capture())
    event_type = module.TrackEvent
    open_slices, last_ns = defaultdict(list), defaultdict(int)
    closed = []
    for packet in packets:
        event = packet.track_event
        if not packet.HasField("track_event"):
            continue
        assert packet.timestamp >= last_ns[event.track_uuid]
        last_ns[event.track_uuid] = packet.timestamp
        if event.type == event_type.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append(event.name)
        elif event.type == event_type.TYPE_SLICE_END:
            closed.append(open_slices[event.track_uuid].pop())
    assert not any(open_slices.values())
    assert sorted(closed) == sorted(
        ["rollout", "rollout", "train.train", "train.gather", "input: batches"]
        + ["render.begin", "rollout.open"] * 2
    )


def test_a_segments_flow_has_one_number_in_all_processes():
    _, packets = parsed(journey().capture())
    flows = defaultdict(list)
    for packet in packets:
        for number in packet.track_event.flow_ids:
            flows[number].append(packet.track_event.name)
    assert flows == {
        segment_number(0, 3) + 1: ["render.begin", "rollout.open", "train.gather"],
        segment_number(1, 3) + 1: ["render.begin", "rollout.open"],
    }


def test_paths_say_which_segments_reached_the_learner():
    paths = segment_paths(journey().capture())
    assert [(p.cell, p.batch, p.complete) for p in paths] == [(0, 3, True), (1, 3, False)]
    assert [process for process, _ in paths[0].stations.values()] == ["host-0", "host-0", "train"]


def test_chrome_events_have_the_same_slices_and_flows():
    events = orjson.loads(to_chrome(journey().capture()))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == 9
    assert min(event["ts"] for event in complete) == 0.0
    gather = next(event for event in complete if event["name"] == "train.gather")
    assert gather["dur"] == 2000.0
    assert [e["id"] for e in events if e["ph"] == "t"].count(segment_number(0, 3)) == 3


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=40))
def test_slices_of_a_lane_always_nest(spans):
    machine = Machine()
    recorder: Recorder = machine.process("p")
    for begin, length in spans:
        recorder._write(0, "span", begin, begin + length, 0)
    found = slices(machine.capture().processes[0])
    assert len(found) == len(spans)
    for each in found:
        for other in found:
            if each.lane == other.lane and each.begin_ns < other.begin_ns < each.end_ns:
                assert other.end_ns <= each.end_ns


@given(st.integers(0, 2**64 - 1))
def test_varints_carry_seven_bits_a_byte(value):
    encoded = varint(value)
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(encoded)) == value
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]


QUERY = """
select p.name, t.name, count(*) as spans
from slice s join thread_track tt on s.track_id = tt.id join thread t using (utid)
join process p using (upid) group by 1, 2 order by 1, 2;
"""


def test_trace_processor_finds_the_spans_and_flows_by_sql(tmp_path):
    """The tool behind ui.perfetto.dev; a single file, from get.perfetto.dev/trace_processor."""
    found = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if found is None:
        pytest.skip("trace_processor is not there: put it into PATH from get.perfetto.dev")
    file = tmp_path / "a.pftrace"
    file.write_bytes(to_perfetto(journey().capture()))

    def ask(query: str) -> list[str]:
        (tmp_path / "query.sql").write_text(query)
        command = [found, "--query-file", str(tmp_path / "query.sql"), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        return done.stdout.replace('"', "").split()[1:]

    assert set(ask(QUERY)) >= {"host-0,MainThread,4", "train,MainThread,2"}
    assert ask("select count(*) as flows from flow;") == ["3"]
