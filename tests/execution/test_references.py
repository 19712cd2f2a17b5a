"""What travels to a worker travels by name; what has none is refused with the fix."""

import functools
import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.errors import BadInput
from rlinf_async.execution.references import (
    SCRIPT_MODULE,
    describe,
    describe_factory,
    name_of,
    rebuild,
    resolve_name,
)

SOURCE = """
from dataclasses import dataclass, field

@dataclass(frozen=True, kw_only=True)
class Point:
    x: float
    label: str = "a"
    inner: object = None
    made: int = field(init=False, default=3)

class Outer:
    class Inner: ...

def scale(value, by=1): return value * by
"""


@pytest.fixture
def script():
    """A module that stands where a user's script would."""
    module = ModuleType(SCRIPT_MODULE)
    sys.modules[SCRIPT_MODULE] = module
    exec(SOURCE, module.__dict__)
    yield module
    del sys.modules[SCRIPT_MODULE]


def round_trip(value):
    wire = orjson.dumps(describe(value, where="test"))
    return rebuild(orjson.loads(wire), where="test")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner)
    | st.lists(inner).map(tuple)
    | st.dictionaries(st.text().filter(lambda key: not key.startswith("$")), inner),
)  # fmt: skip


@given(plain)
def test_plain_values_come_back_with_their_types(value):
    found = round_trip(value)
    assert found == value
    assert repr(found) == repr(value)


def test_records_functions_and_partials_come_back(script):
    point = script.Point(x=1.5, inner=(script.Point(x=2.0), [script.scale]))
    assert round_trip(point) == point
    partial = round_trip(functools.partial(script.scale, by=3))
    assert partial.func is script.scale
    assert partial(2) == 6
    assert round_trip(script.Outer.Inner) is script.Outer.Inner
    assert name_of(script.Outer.Inner, where="t") == f"{SCRIPT_MODULE}:Outer.Inner"


def test_numpy_scalars_become_plain_numbers():
    assert round_trip({"a": np.float32(0.5), "b": np.int64(3)}) == {"a": 0.5, "b": 3}


def test_factory_is_called_later(script):
    factory = rebuild(describe_factory(script.Point, {"x": 2.0}, where="t"), where="t")
    assert factory() == script.Point(x=2.0)
    assert factory(label="b").label == "b"


def make_closure():
    @dataclass(frozen=True)
    class Local:
        x: int = 1

    def closure(): ...

    return Local, closure


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 1, "lambda"),
        (make_closure()[0], "defined inside a function"),
        (make_closure()[0](), "defined inside a function"),
        (make_closure()[1], "defined inside a function"),
        (functools.partial(print, 1), "positional arguments"),
        (functools.partial(lambda: 1), "lambda"),
        ({1: 2}, "dictionary key 1"),
        ({"$call": 2}, "dictionary key"),
        ({1, 2}, "a set cannot travel"),
        (np.zeros(3), "a ndarray cannot travel"),
        (b"bytes", "a bytes cannot travel"),
    ],
)
def test_what_has_no_name_is_refused(value, message):
    with pytest.raises(BadInput, match=message) as caught:
        describe([value], where="run.policy")
    assert str(caught.value).startswith("run.policy: ")


def test_main_module_is_refused_with_the_command_to_use(script):
    script.scale.__module__ = "__main__"
    with pytest.raises(BadInput, match=r"python -m rlinf_async run SCRIPT"):
        name_of(script.scale, where="t")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_colon", "is no reference"),
        (":x", "is no reference"),
        ("no_such_module_at_all:x", "cannot be imported: ModuleNotFoundError"),
        ("math:sqrtt", "did you mean 'sqrt'"),
        ("math:sqrt.deeper", r"has no 'sqrt\.deeper'"),
    ],
)
def test_missing_name_is_refused_with_its_neighbours(reference, message):
    with pytest.raises(BadInput, match=message):
        resolve_name(reference, where="t")
