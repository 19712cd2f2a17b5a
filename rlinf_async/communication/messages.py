"""Every message that crosses a link: frozen tagged records, written and read by orjson.

On the wire a message is one JSON object `{tag: {field: value, ...}}`; arrays travel beside it as
raw frames. Reading is strict: a tag, field or type that is not declared here is a ProtocolError.
JSON has no NaN and no infinity: they travel as `{"$float": "nan"}`. Tuples arrive as lists.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import traceback as tracebacks
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import orjson

from rlinf_async.errors import ProtocolError

PROTOCOL = 1
"""Both ends of a link must agree on it; raised with every change to the records below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of every dealer; answered by Welcome."""

    tag: ClassVar[str] = "hello"
    protocol: int = PROTOCOL
    host: str
    pid: int
    python: str
    packages: dict[str, str]
    """Distribution name -> version, for the run folder and for error reports."""

    @classmethod
    def of_this_process(cls, host: str, packages: Mapping[str, str] | None = None) -> Self:
        """A greeting with this process's pid and Python version."""
        return cls(
            host=host,
            pid=os.getpid(),
            python=platform.python_version(),
            packages=dict(packages or {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The router's answer to Hello."""

    tag: ClassVar[str] = "welcome"
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The router's answer to a Hello that it could not read."""

    tag: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Run a method of a worker; answered by exactly one Reply or Failure."""

    tag: ClassVar[str] = "call"
    call_id: int
    worker: str
    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the called method returned."""

    tag: ClassVar[str] = "reply"
    call_id: int
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the called method raised."""

    tag: ClassVar[str] = "failure"
    call_id: int
    kind: str
    """The exception's class name."""
    message: str
    traceback: str

    @classmethod
    def of(cls, call_id: int, error: BaseException) -> Self:
        """The record of `error`; text that is no valid Unicode is replaced, never refused."""
        lines = "".join(tracebacks.format_exception(error))
        return cls(
            call_id=call_id,
            kind=_valid_text(type(error).__name__),
            message=_valid_text(str(error)),
            traceback=_valid_text(lines),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A host lives: what it does, since when, and what its stages waited for."""

    tag: ClassVar[str] = "heartbeat"
    host: str
    command: str
    """The method that runs now (`render.0.collect`), or an empty string."""
    command_age_s: float
    rss_bytes: int
    stages: dict[str, dict[str, float]]
    """Stage -> kind of time (working, input, space, weights, devices) -> seconds."""
    counters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Whoever sends it wants to close; answered by Drained behind everything already sent."""

    tag: ClassVar[str] = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Answer to Drain: how many messages the answering side has sent and received."""

    tag: ClassVar[str] = "drained"
    sent: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One-way news that nobody answers."""

    tag: ClassVar[str] = "note"
    topic: str
    value: Any


Message: TypeAlias = (
    Hello | Welcome | Refused | Call | Reply | Failure | Heartbeat | Drain | Drained | Note
)
MESSAGES: dict[str, type[Any]] = {kind.tag: kind for kind in typing.get_args(Message)}

_FLOAT = "$float"
_FLOAT_KEY = b'"$float":'
"""As a key only: inside a JSON string the quotes would be escaped."""


def encode(message: Message) -> bytes:
    """The wire form of `message`.

    numpy scalars are written as plain numbers.

    Raises:
        ProtocolError: a value that JSON cannot hold (arrays travel as frames), a dictionary key
            that is no string, an integer beyond 64 bits, the reserved key "$float".
    """
    try:
        data = orjson.dumps({message.tag: message}, default=_plain)
        if _FLOAT_KEY in data:
            raise ProtocolError(f"a {message.tag} message uses the reserved key {_FLOAT!r}")
        if b"null" in data:
            # orjson writes NaN and infinity as null: rewrite them, which costs only such messages.
            body = {name: getattr(message, name) for name in _FIELDS[message.tag].names}
            data = orjson.dumps({message.tag: _mark_floats(body)}, default=_plain)
    except TypeError as cause:
        raise ProtocolError(f"a {message.tag} message cannot be written: {cause}") from cause
    return data


def decode(data: bytes) -> Message:
    """The inverse of `encode`.

    Raises:
        ProtocolError: not JSON, an unknown tag, a missing, surplus or wrongly typed field, or
            another protocol number.
    """
    try:
        envelope = orjson.loads(data)
    except orjson.JSONDecodeError as cause:
        raise ProtocolError(f"a message is not JSON: {cause}") from cause
    if type(envelope) is not dict or len(envelope) != 1:
        raise ProtocolError("a message is not one object with one tag")
    [(tag, body)] = envelope.items()
    kind = MESSAGES.get(tag)
    if kind is None:
        raise ProtocolError(f"unknown message {tag!r}; this version knows {sorted(MESSAGES)}")
    if _FLOAT_KEY in data:
        body = _restore_floats(body)
    _check(tag, body)
    message: Message = kind(**body)
    return message


def _check(tag: str, body: Any) -> None:
    if type(body) is not dict:
        raise ProtocolError(f"the body of a {tag} message is no object")
    fields = _FIELDS[tag]
    # Before the fields: a peer of another protocol has other fields, and that is not the news.
    if "protocol" in fields.names and body.get("protocol", PROTOCOL) != PROTOCOL:
        raise ProtocolError(
            f"the other side speaks protocol {body['protocol']!r}, this side {PROTOCOL}; "
            "install the same rlinf_async version in both interpreters"
        )
    if body.keys() != fields.names:
        missing, surplus = fields.names - body.keys(), body.keys() - fields.names
        raise ProtocolError(
            f"a {tag} message has missing fields {sorted(missing)}, "
            f"surplus fields {sorted(surplus)}"
        )
    for name, kind in fields.plain:
        if type(body[name]) is not kind:
            raise _wrong_type(tag, name, body[name])
    for name, check in fields.nested:
        if not check(body[name]):
            raise _wrong_type(tag, name, body[name])


def _wrong_type(tag: str, name: str, value: Any) -> ProtocolError:
    return ProtocolError(f"field {name!r} of a {tag} message is a {type(value).__name__}")


class _Fields:
    """The fields of one record: those of one exact type, and those that need a closer look."""

    def __init__(self, record: type[Any]) -> None:
        hints = typing.get_type_hints(record)
        kinds = {field.name: hints[field.name] for field in dataclasses.fields(record)}
        self.names = frozenset(kinds)
        self.plain: list[tuple[str, type]] = []
        self.nested: list[tuple[str, Callable[[Any], bool]]] = []
        for name, hint in kinds.items():
            if hint in (int, str):
                self.plain.append((name, hint))
            elif typing.get_origin(hint) is dict and typing.get_args(hint)[1] is Any:
                self.plain.append((name, dict))
            elif hint is not Any:
                self.nested.append((name, _checker(hint)))


def _checker(hint: Any) -> Callable[[Any], bool]:
    """A test of one JSON value against a float or a dictionary of such or of strings."""
    if hint is float:
        return lambda value: type(value) is float or type(value) is int
    if typing.get_origin(hint) is dict:
        check = _checker(typing.get_args(hint)[1])
        return lambda value: type(value) is dict and all(map(check, value.values()))
    return lambda value: type(value) is hint


_FIELDS = {tag: _Fields(record) for tag, record in MESSAGES.items()}


def _plain(value: Any) -> Any:
    """numpy scalars (and only they) as Python numbers; numpy need not be loaded for it."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} values cannot travel in a header")


def _mark_floats(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(float(value))}
    if isinstance(value, dict):
        return {key: _mark_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_floats(item) for item in value]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _mark_floats(value.item())
    return value


def _restore_floats(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return _float_of(value[_FLOAT])
        return {key: _restore_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_floats(item) for item in value]
    return value


def _float_of(name: Any) -> float:
    if name not in ("nan", "inf", "-inf"):
        raise ProtocolError(f"{name!r} names no float")
    return float(name)


def _valid_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
