"""Reading a ring from outside: whole records only, names, states, files."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.tracing.reading import Capture, RingReader, capture
from rlinf_async.tracing.recorder import RECORD, Recorder, segment_number
from rlinf_async.tracing.ring import RING_AT, STATE_BYTES, RingFile, block_bytes, read_head


def recorded(capacity: int = 64, process: str = "host-0") -> tuple[Recorder, RingReader]:
    memory = bytearray(block_bytes(capacity))
    recorder = Recorder(process, capacity, clock_ns=itertools.count(1).__next__, memory=memory)
    return recorder, RingReader(memory)


@given(count=st.integers(0, 300), after=st.integers(0, 320), since_ns=st.integers(0, 320))
def test_a_reader_sees_the_newest_records_it_asks_for(count, after, since_ns):
    recorder, reader = recorded(64)
    for number in range(count):
        recorder.counter("n", number)
    trace = reader.read(after=after, since_ns=since_ns)
    expected = [n for n in range(count)[-64:] if n + 1 > after and n + 1 >= since_ns]
    assert trace.records["value"].tolist() == expected
    assert (trace.process, trace.pid, list(trace.threads)) == (
        "host-0",
        os.getpid(),
        ["MainThread"] if count else [],
    )


def test_a_record_that_is_being_written_is_left_out():
    recorder, reader = recorded(1024)
    for number in range(1500):
        recorder.counter("n", number)
    place = RING_AT + 7 * RECORD.size
    # The number is written first: this one claims to be of the third round, its end is not.
    RECORD.pack_into(
        reader._memory, place, 2048 + 7 + 1, *RECORD.unpack_from(reader._memory, place)[1:]
    )
    numbers = reader.read().records["number"].tolist()
    assert 2048 + 8 not in numbers
    assert len(numbers) == 1023


def test_a_state_is_the_newest_one_and_too_long_ones_change_nothing():
    recorder, reader = recorded()
    assert reader.state() == {}
    assert recorder.tell(b'{"n": 1}')
    assert recorder.tell(b'{"n": 2}')
    assert not recorder.tell(b" " * STATE_BYTES)
    assert reader.state() == {"n": 2}


def test_memory_of_another_version_is_refused_and_an_empty_one_is_nobodys():
    assert RingReader(bytearray(block_bytes(8))).read() is None
    memory = bytearray(block_bytes(8))
    memory[:8] = b"RLTRACE9"
    with pytest.raises(ValueError, match="another version"):
        read_head(memoryview(memory))


def test_a_capture_survives_its_file(tmp_path):
    recorder, reader = recorded()
    with recorder.span("work", 3):
        recorder.flow("segment", 2, 5)
    recorder.tell(b'{"command": "idle"}')
    taken = capture([reader], now_ns=100, seconds=1.0, run={"id": "r"}, status={"failure": "x"})
    taken.save(tmp_path / "flight.bin")
    loaded = Capture.load(tmp_path / "flight.bin")
    (before,), (after,) = taken.processes, loaded.processes
    np.testing.assert_array_equal(after.records, before.records)
    assert (after.names, after.threads, after.state) == (before.names, before.threads, before.state)
    assert (loaded.run, loaded.status, loaded.taken_ns) == ({"id": "r"}, {"failure": "x"}, 100)
    assert after.of_kind("flow")["value"].tolist() == [segment_number(2, 5)]


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "flight.bin").write_bytes(b"something")
    with pytest.raises(ValueError, match="no flight record"):
        Capture.load(tmp_path / "flight.bin")


def test_a_viewer_cannot_write_what_it_is_handed():
    ring = RingFile("host-0", 64)
    recorder = Recorder("host-0", ring.capacity, memory=ring.memory)
    reader = RingReader.of_descriptor(ring.open_read_only())
    recorder.instant("seen")
    assert [reader.read().name(r) for r in reader.read().records] == ["seen"]
    with pytest.raises(TypeError, match="readonly"):
        reader._memory[0] = 1
    reader.close()
    ring.close()
