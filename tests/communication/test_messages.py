import contextlib
import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.communication import messages
from rlinf_async.communication.messages import (
    MESSAGES,
    PROTOCOL,
    Call,
    Drain,
    Drained,
    Failure,
    Heartbeat,
    Hello,
    Note,
    Refused,
    Reply,
    Welcome,
    decode,
    encode,
)
from rlinf_async.errors import ProtocolError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = texts.filter(lambda key: key != "$float")
numbers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(keys, values, max_size=4)
any_message = st.one_of(
    st.builds(
        Hello,
        host=texts,
        pid=numbers,
        python=texts,
        packages=st.dictionaries(keys, texts, max_size=3),
    ),
    st.just(Welcome()),
    st.builds(Refused, reason=texts),
    st.builds(Call, call_id=numbers, worker=texts, method=texts, arguments=bodies),
    st.builds(Reply, call_id=numbers, value=values),
    st.builds(Failure, call_id=numbers, kind=texts, message=texts, traceback=texts),
    st.builds(
        Heartbeat,
        host=texts,
        command=texts,
        command_age_s=floats,
        rss_bytes=numbers,
        stages=st.dictionaries(keys, st.dictionaries(keys, floats, max_size=3), max_size=3),
        counters=bodies,
    ),
    st.just(Drain()),
    st.builds(Drained, sent=numbers, received=numbers),
    st.builds(Note, topic=texts, value=values),
)


@given(any_message)
def test_every_message_survives_the_wire(message):
    assert decode(encode(message)) == message


def test_every_declared_message_is_generated_above():
    assert {type(m) for m in _examples()} == set(MESSAGES.values())


def test_nan_and_infinity_survive_instead_of_becoming_null():
    sent = {"loss": math.nan, "list": [math.inf, None, -math.inf, 1.5], "numpy": np.float32("nan")}
    received = decode(encode(Reply(call_id=1, value=sent))).value
    assert math.isnan(received["loss"])
    assert received["list"] == [math.inf, None, -math.inf, 1.5]
    assert math.isnan(received["numpy"])


def test_numpy_scalars_travel_as_numbers_but_arrays_are_refused():
    sent = {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)}
    assert decode(encode(Note(topic="t", value=sent))).value == {"a": 0.5, "b": 3, "c": True}
    with pytest.raises(ProtocolError, match="ndarray"):
        encode(Note(topic="t", value=np.zeros(3)))


@pytest.mark.parametrize("value", [{1: 2}, 2**70, {"$float": "nan"}, object(), "\udc80", {1, 2}])
def test_values_that_json_cannot_hold_are_refused(value):
    with pytest.raises(ProtocolError):
        encode(Note(topic="t", value=value))


def test_the_reserved_key_is_harmless_inside_text():
    note = Note(topic="t", value=['{"$float":"nan"}', "$float", None])
    assert decode(encode(note)) == note


@pytest.mark.parametrize("message", [m for m in [Drained(sent=1, received=2), Welcome()]])
def test_missing_and_surplus_fields_are_named(message):
    body = orjson.loads(encode(message))[message.tag]
    for name in body:
        short = {key: value for key, value in body.items() if key != name}
        with pytest.raises(ProtocolError, match=rf"missing fields \['{name}'\]"):
            decode(orjson.dumps({message.tag: short}))
    with pytest.raises(ProtocolError, match=r"surplus fields \['more'\]"):
        decode(orjson.dumps({message.tag: {**body, "more": 1}}))


@given(any_message, st.data())
def test_no_field_may_be_missing(message, data):
    body = orjson.loads(encode(message))[message.tag]
    if not body:
        return
    del body[data.draw(st.sampled_from(sorted(body)))]
    with pytest.raises(ProtocolError, match="missing"):
        decode(orjson.dumps({message.tag: body}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"call":{},"reply":{}}',
        b'{"call":[]}',
        b'{"drained":{"sent":"1","received":2}}',
        b'{"drained":{"sent":true,"received":2}}',
        b'{"drained":{"sent":1.0,"received":2}}',
        b'{"note":{"topic":"t","value":{"$float":"0.5"}}}',
        b"[" * 3000,
    ],
)
def test_malformed_messages_are_protocol_errors(data):
    with pytest.raises(ProtocolError):
        decode(data)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_raise_anything_else(data):
    with contextlib.suppress(ProtocolError):
        decode(data)


def test_an_unknown_tag_is_named():
    with pytest.raises(ProtocolError, match="unknown message 'shout'"):
        decode(b'{"shout":{}}')


def test_another_protocol_is_reported_before_its_other_fields():
    with pytest.raises(ProtocolError, match=rf"protocol 99, this side {PROTOCOL}"):
        decode(b'{"hello":{"protocol":99,"something":"else"}}')


def test_a_failure_of_unprintable_text_can_always_be_sent():
    failure = Failure.of(3, OSError("no file \udcff"))
    assert decode(encode(failure)) == failure
    assert failure.kind == "OSError"
    assert "OSError" in failure.traceback


def _examples():
    return [
        messages.Hello.of_this_process("h", {"numpy": "2"}),
        Welcome(),
        Refused(reason="old"),
        Call(call_id=1, worker="w", method="m", arguments={}),
        Reply(call_id=1, value=None),
        Failure(call_id=1, kind="k", message="m", traceback="t"),
        Heartbeat(host="h", command="", command_age_s=0, rss_bytes=1, stages={}, counters={}),
        Drain(),
        Drained(sent=1, received=1),
        Note(topic="t", value=1),
    ]
