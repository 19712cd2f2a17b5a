"""Classes, functions and small records as names and plain values, so that nothing is ever pickled.

A class or function travels as `module:qualname`; a frozen dataclass as its class and fields; a
`functools.partial` as its function and keyword arguments. What has no importable name (a lambda, a
closure, a class defined inside a function) is refused with the reason and the fix.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from typing import Any

import numpy as np

from rlinf_async.errors import BadInput, nearest

SCRIPT_MODULE = "__rlinf_script__"
"""The name under which a user's script is imported, in the controller and in every host."""

_CALL = "$call"
_NAME = "$name"
_TUPLE = "$tuple"


def name_of(thing: Any, *, where: str) -> str:
    """`module:qualname` of a class or function; BadInput if a worker could not import it."""
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or qualname is None:
        raise BadInput(where, f"{thing!r} has no importable name", fix=_FIX)
    if "<lambda>" in qualname:
        raise BadInput(where, f"a lambda (in {module}) cannot travel to a worker", fix=_FIX)
    if "<locals>" in qualname:
        raise BadInput(where, f"{qualname} is defined inside a function (a closure)", fix=_FIX)
    if module == "__main__":
        raise BadInput(
            where,
            f"{qualname} lives in __main__, which workers cannot import",
            fix="start the script with `python -m rlinf_async run SCRIPT`",
        )
    return f"{module}:{qualname}"


_FIX = "define it at the top level of the script or of a module, and give arguments by keyword"


def resolve_name(reference: str, *, where: str) -> Any:
    """Import what `module:qualname` names; BadInput names the missing part and its neighbours."""
    module_name, _, qualname = reference.partition(":")
    if not module_name or not qualname:
        raise BadInput(where, f"{reference!r} is no reference", expected="'module:qualname'")
    try:
        thing: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    except Exception as cause:
        raise BadInput(
            where,
            f"module {module_name!r} cannot be imported: {type(cause).__name__}: {cause}",
            fix="check the spelling and that it is installed in this interpreter",
        ) from cause
    for part in qualname.split("."):
        if not hasattr(thing, part):
            hint = nearest(part, dir(thing))
            raise BadInput(where, f"{module_name!r} has no {qualname!r}", fix=hint)
        thing = getattr(thing, part)
    return thing


def describe(value: Any, *, where: str) -> Any:
    """Turn `value` into what orjson can write; the inverse of `rebuild`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [describe(item, where=where) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [describe(item, where=where) for item in value]}
    if isinstance(value, dict):
        return {_key(key, where): describe(item, where=where) for key, item in value.items()}
    if isinstance(value, functools.partial):
        if value.args:
            raise BadInput(where, f"{value!r} has positional arguments", fix="use keywords")
        keywords = {k: describe(v, where=where) for k, v in value.keywords.items()}
        return {_CALL: name_of(value.func, where=where), "arguments": keywords, "partial": True}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: describe(getattr(value, f.name), where=where)
            for f in dataclasses.fields(value)
            if f.init
        }
        return {_CALL: name_of(type(value), where=where), "arguments": fields}
    if callable(value):
        return {_NAME: name_of(value, where=where)}
    raise BadInput(
        where,
        f"a {type(value).__name__} cannot travel to a worker",
        expected="numbers, strings, lists, dictionaries, frozen dataclasses, named functions",
    )


def describe_factory(target: Any, arguments: dict[str, Any], *, where: str) -> dict[str, Any]:
    """`target(**arguments)` to be called later: `rebuild` gives a `functools.partial`."""
    keywords = {key: describe(value, where=where) for key, value in arguments.items()}
    return {_CALL: name_of(target, where=where), "arguments": keywords, "partial": True}


def rebuild(data: Any, *, where: str) -> Any:
    """The inverse of `describe`."""
    if isinstance(data, list):
        return [rebuild(item, where=where) for item in data]
    if not isinstance(data, dict):
        return data
    if _TUPLE in data:
        return tuple(rebuild(item, where=where) for item in data[_TUPLE])
    if _NAME in data:
        return resolve_name(data[_NAME], where=where)
    if _CALL in data:
        target = resolve_name(data[_CALL], where=where)
        arguments = {k: rebuild(v, where=where) for k, v in data["arguments"].items()}
        return (
            functools.partial(target, **arguments) if data.get("partial") else target(**arguments)
        )
    return {key: rebuild(item, where=where) for key, item in data.items()}


def needs_script(data: Any) -> bool:
    """Whether a description names something of the user's script."""
    if isinstance(data, dict):
        return any(needs_script(value) for value in data.values())
    if isinstance(data, list):
        return any(needs_script(value) for value in data)
    return isinstance(data, str) and data.startswith(f"{SCRIPT_MODULE}:")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str) or key.startswith("$"):
        raise BadInput(where, f"dictionary key {key!r}", expected="a string not beginning with '$'")
    return key
