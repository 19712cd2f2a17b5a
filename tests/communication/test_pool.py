import contextlib
import dataclasses
import os
import subprocess
import sys

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlinf_async.communication import pool as pool_module
from rlinf_async.communication.fields import Field, Layout
from rlinf_async.communication.pool import PoolDescriptor, PoolEmpty, RowNotTaken, RowPool
from rlinf_async.errors import BadInput, PeerGone

FIELDS = (
    Field(name="obs/state", shape=(3, 5), dtype="float32"),
    Field(name="reward", shape=(3,), dtype="float64"),
    Field(name="done", shape=(3,), dtype="bool"),
    Field(name="version", shape=(), dtype="int64"),
)

ATTACH = """
import sys, orjson, numpy as np
from rlinf_async.communication.pool import PoolDescriptor, RowPool
pool = RowPool.attach(PoolDescriptor.from_json(orjson.loads(sys.argv[1])))
row = pool.row(1)
assert (row["obs/state"] == np.arange(15, dtype=np.float32).reshape(3, 5)).all()
row["reward"][:] = [1.5, 2.5, 3.5]
row["version"][...] = 7
print(pool.descriptor.pid)
"""


@pytest.fixture
def make_pool():
    with contextlib.ExitStack() as stack:

        def make(rows=3, fields=FIELDS, **options):
            return stack.enter_context(
                contextlib.closing(RowPool.create("segments", fields, rows, **options))
            )

        yield make


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
dtypes = st.sampled_from(["bool", "uint8", "int64", "float32", "float64"])


@given(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=6))
def test_fields_are_aligned_and_never_overlap(kinds):
    fields = [Field(name=str(i), shape=s, dtype=d) for i, (s, d) in enumerate(kinds)]
    layout = Layout(fields)
    end = 0
    for field in fields:
        offset = layout.offsets[field.name]
        assert offset % 64 == 0
        assert offset >= end
        end = offset + field.byte_count
    assert layout.row_bytes >= end
    assert layout.row_bytes % 64 == 0


@pytest.mark.parametrize("dtype", ["object", "U5", "datetime64[s]"])
def test_fields_hold_numbers_only(dtype):
    with pytest.raises(BadInput, match="cannot hold this dtype"):
        Field(name="x", shape=(2,), dtype=dtype)


def test_repeated_field_names_are_refused():
    with pytest.raises(BadInput, match="unique"):
        Layout([FIELDS[0], FIELDS[0]])


def test_rows_are_zero_writable_and_separate(make_pool):
    pool = make_pool()
    for number in range(3):
        for array in pool.row(number).values():
            assert not array.any()
            assert array.flags.writeable
            assert array.ctypes.data % 64 == 0
            array.fill(number)
    assert [int(pool.row(n)["version"]) for n in range(3)] == [0, 1, 2]
    assert (pool.row(1)["reward"] == 1).all()
    assert pool.row(1) is pool.row(1)


def test_another_process_attaches_by_the_descriptor(make_pool):
    pool = make_pool()
    pool.row(1)["obs/state"][...] = np.arange(15).reshape(3, 5)
    wire = orjson.dumps(pool.descriptor.to_json()).decode()
    done = subprocess.run(
        [sys.executable, "-c", ATTACH, wire], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(os.getpid())
    assert pool.row(1)["reward"].tolist() == [1.5, 2.5, 3.5]
    assert pool.row(1)["version"] == 7


def test_the_descriptor_survives_json():
    with contextlib.closing(RowPool.create("w", FIELDS, 2)) as pool:
        wire = orjson.dumps(pool.descriptor.to_json())
        assert PoolDescriptor.from_json(orjson.loads(wire)) == pool.descriptor


def test_the_memory_is_really_allocated(make_pool):
    pool = make_pool(fields=[Field(name="x", shape=(1 << 20,), dtype="uint8")], rows=4)
    allocated = os.fstat(pool.descriptor.fd).st_blocks * 512
    assert allocated >= 4 << 20


def test_only_the_owner_takes_and_gives(make_pool):
    attached = RowPool.attach(make_pool().descriptor)
    with contextlib.closing(attached):
        for use in (attached.take, lambda: attached.give(0), lambda: attached.free_count):
            with pytest.raises(RuntimeError, match="belongs to process"):
                use()


def test_an_empty_pool_says_so(make_pool):
    pool = make_pool(rows=2)
    pool.take(), pool.take()
    with pytest.raises(PoolEmpty, match="all 2 rows are taken"):
        pool.take()


@pytest.mark.parametrize("number", [0, -1, 99])
def test_giving_what_is_not_taken_is_an_error(make_pool, number):
    with pytest.raises(RowNotTaken, match=f"row {number} is not taken"):
        make_pool().give(number)


def test_a_row_outside_the_pool_is_an_error(make_pool):
    for number in (3, -1):
        with pytest.raises(IndexError, match="no row"):
            make_pool().row(number)


def test_poison_spoils_free_rows(make_pool):
    pool = make_pool(poison=True)
    number = pool.take()
    row = pool.row(number)
    assert np.isnan(row["reward"]).all()
    for array in row.values():
        array.fill(1)
    pool.give(number)
    assert np.isnan(row["obs/state"]).all()
    assert np.isnan(row["reward"]).all()
    assert row["done"].all()
    assert row["version"].tobytes() == b"\xa5" * 8


def test_too_little_memory_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(pool_module, "memory_available_bytes", lambda: 1_000_000)
    fields = [Field(name="pixels", shape=(1000,), dtype="uint8")]
    with pytest.raises(BadInput) as caught:
        RowPool.create("segments", fields, 2000)
    text = str(caught.value)
    assert "2,052,096 bytes (2,000 rows x 1,024 bytes)" in text
    assert "1,000,000 bytes free" in text
    assert "fewer environments" in text


def test_more_memory_than_the_machine_has_is_refused_before_it_is_touched():
    with pytest.raises(BadInput, match="not enough memory"):
        RowPool.create("segments", [Field(name="x", shape=(1 << 40,), dtype="float64")], 1000)


def test_a_closed_pool_cannot_be_attached(make_pool):
    pool = make_pool()
    pool.close()
    with pytest.raises(PeerGone, match="is gone"):
        RowPool.attach(pool.descriptor)


@pytest.mark.parametrize("kind", ["pipe", "pool", "file"])
def test_a_recycled_descriptor_is_not_taken_for_the_pool(make_pool, kind, tmp_path):
    descriptor, held = _open_something(kind, tmp_path)
    with held, pytest.raises(PeerGone, match="another file has taken its descriptor"):
        RowPool.attach(dataclasses.replace(make_pool().descriptor, fd=descriptor))


def _open_something(kind, tmp_path):
    stack = contextlib.ExitStack()
    if kind == "pool":
        pool = RowPool.create("other", FIELDS, 3)
        stack.callback(pool.close)
        return pool.descriptor.fd, stack
    if kind == "pipe":
        ends = os.pipe()
        for end in ends:
            stack.callback(os.close, end)
        return ends[0], stack
    file = stack.enter_context((tmp_path / "x").open("w+b"))
    return file.fileno(), stack


def test_nobody_can_shrink_the_memory_under_its_readers(make_pool):
    with pytest.raises(PermissionError):
        os.ftruncate(make_pool().descriptor.fd, 10)


def test_closing_twice_is_fine_and_frees_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        pool = RowPool.create("segments", FIELDS, 2)
        attached = RowPool.attach(pool.descriptor)
        attached.row(0), pool.row(0)
        for each in (attached, pool):
            each.close()
            each.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_arrays_outlive_the_pool_that_made_them():
    pool = RowPool.create("segments", FIELDS, 1)
    reward = pool.row(0)["reward"]
    pool.close()
    reward[:] = 2
    assert reward.sum() == 6
    with pytest.raises(ValueError, match="closed"):
        pool.row(0)


class PoolMachine(RuleBasedStateMachine):
    """taken + free is always the number of rows, and no row is in both."""

    ROWS = 4

    def __init__(self):
        super().__init__()
        self.pool = RowPool.create("machine", FIELDS, self.ROWS, poison=True)
        self.taken = {}
        self.stamp = 0

    @precondition(lambda self: len(self.taken) < self.ROWS)
    @rule()
    def take(self):
        number = self.pool.take()
        assert number not in self.taken
        self.stamp += 1
        self.pool.row(number)["version"][...] = self.stamp
        self.taken[number] = self.stamp

    @precondition(lambda self: len(self.taken) == self.ROWS)
    @rule()
    def take_from_empty(self):
        with pytest.raises(PoolEmpty):
            self.pool.take()

    @rule(number=st.integers(-1, ROWS))
    def give(self, number):
        if self.taken.pop(number, None) is None:
            with pytest.raises(RowNotTaken):
                self.pool.give(number)
        else:
            self.pool.give(number)

    @invariant()
    def every_row_is_taken_or_free(self):
        assert self.pool.free_count == self.ROWS - len(self.taken)

    @invariant()
    def taken_rows_keep_their_contents(self):
        for number, stamp in self.taken.items():
            assert self.pool.row(number)["version"] == stamp

    def teardown(self):
        self.pool.close()


PoolMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestPoolConservation = PoolMachine.TestCase
