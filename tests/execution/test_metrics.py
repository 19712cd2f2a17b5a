"""The metrics writer never makes the run wait, and says what it dropped."""

import threading

import orjson
import pytest

from rlinf_async.errors import StreamClosed
from rlinf_async.execution.metrics import JsonLines, MetricsWriter
from rlinf_async.execution.tensorboard import EventFile, crc32c, frame


class Gate:
    """A sink that blocks until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.rows = []

    def write(self, row) -> None:
        self.entered.set()
        self.opened.wait()
        self.rows.append(row)

    def close(self) -> None: ...


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def write(self, row) -> None:
        self.calls += 1
        raise OSError("disk full")

    def close(self) -> None:
        raise AssertionError("a sink that failed is left alone")


def rows_of(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_rows_are_written_in_order_and_survive_close(tmp_path):
    writer = MetricsWriter(tmp_path, sinks=[JsonLines(tmp_path / "metrics.jsonl")])
    for step in range(100):
        assert writer.write({"env_steps": step, "loss": float("nan"), "note": "x"})
    writer.close()
    rows = rows_of(writer.path)
    assert [row["env_steps"] for row in rows] == list(range(100))
    assert rows[0] == {"env_steps": 0, "loss": None, "note": "x"}
    assert writer.dropped == 0


def test_full_queue_drops_and_counts_instead_of_waiting(tmp_path):
    gate = Gate()
    writer = MetricsWriter(tmp_path, capacity=3, sinks=[gate])
    assert writer.write({"env_steps": 0})
    assert gate.entered.wait(10)
    taken = [writer.write({"env_steps": step}) for step in range(1, 10)]
    assert taken == [True] * 3 + [False] * 6
    assert writer.dropped == 6
    gate.opened.set()
    writer.close()
    assert [row["env_steps"] for row in gate.rows] == [0, 1, 2, 3]


def test_close_gives_up_on_a_stuck_disk_and_counts_the_rest(tmp_path):
    gate = Gate()
    writer = MetricsWriter(tmp_path, sinks=[gate])
    for step in range(5):
        writer.write({"env_steps": step})
    assert gate.entered.wait(10)
    writer.close(limit_s=0.01)
    assert writer.dropped == 4
    gate.opened.set()
    writer.close()
    assert writer.dropped == 4


def test_row_after_close_is_refused_and_close_is_idempotent(tmp_path):
    writer = MetricsWriter(tmp_path, sinks=[])
    writer.close()
    writer.close()
    with pytest.raises(StreamClosed, match="metrics"):
        writer.write({"env_steps": 1})


def test_row_is_copied_before_the_caller_changes_it(tmp_path):
    gate = Gate()
    writer = MetricsWriter(tmp_path, sinks=[gate])
    row = {"env_steps": 1}
    writer.write(row)
    row["env_steps"] = 2
    gate.opened.set()
    writer.close()
    assert gate.rows == [{"env_steps": 1}]


def test_sink_that_fails_does_not_stop_the_others(tmp_path):
    broken, path = Broken(), tmp_path / "metrics.jsonl"
    writer = MetricsWriter(tmp_path, sinks=[broken, JsonLines(path)])
    writer.write({"env_steps": 1})
    writer.write({"env_steps": 2})
    writer.close()
    assert broken.calls == 1
    assert len(rows_of(path)) == 2


def test_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        MetricsWriter(tmp_path / "nowhere")


def test_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_step_and_value_of_a_scalar_are_where_the_format_has_them(tmp_path):
    file = EventFile(tmp_path)
    before = file.path.stat().st_size
    file.add({"loss": 0.5}, step=300)
    file.close()
    record = file.path.read_bytes()[before + 12 : -4]
    assert record[9:] == b"\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0?"


def events_of(path):
    """The events of a TensorBoard file, by a reader that is not ours."""
    from tensorboardX.proto.event_pb2 import Event

    data, start = path.read_bytes(), 0
    while start < len(data):
        length = int.from_bytes(data[start : start + 8], "little")
        record = data[start + 12 : start + 12 + length]
        assert data[start : start + 16 + length] == frame(record)
        yield Event.FromString(record)
        start += 16 + length


def test_scalars_reach_tensorboard_over_env_steps(tmp_path):
    pytest.importorskip("tensorboardX")
    writer = MetricsWriter(tmp_path)
    writer.write({"env_steps": 2048, "train/loss": 0.5, "note": "text"})
    writer.write({"env_steps": 4096, "train/loss": 0.25})
    writer.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    points = [
        (value.tag, event.step, value.simple_value)
        for event in events_of(file)
        for value in event.summary.value
    ]
    assert points == [("train/loss", 2048, 0.5), ("train/loss", 4096, 0.25)]
