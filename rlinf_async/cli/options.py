"""A run's options: the engine's and the script's in one flat list, parsed by tyro."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from rlinf_async.cli import exits
from rlinf_async.errors import BadInput
from rlinf_async.execution.options import EngineOptions


def parse_options(
    script: str, config: type | None, arguments: Sequence[str]
) -> tuple[EngineOptions, Any]:
    """Engine options and an instance of the script's `config` from the command line.

    Raises BadInput for an unknown option, naming the nearest known one. Help and malformed values
    end in tyro's own message and SystemExit (0 and 2).
    """
    import tyro

    fields: list[tuple[str, Any]] = [("engine", EngineOptions)]
    if config is not None:
        fields.append(("script", config))
    options = dataclasses.make_dataclass("Options", fields, kw_only=True)
    parsed: Any
    try:
        parsed, unknown = tyro.cli(
            options,
            prog=f"python -m rlinf_async run {script}",
            description=f"Train what a script describes.\n\n{exits.HELP}",
            args=list(arguments),
            config=(tyro.conf.OmitArgPrefixes,),
            return_unknown_args=True,
        )
    except BadInput:
        raise
    except Exception as cause:
        raise BadInput(
            script, f"Config could not be made: {type(cause).__name__}: {cause}"
        ) from cause
    if unknown:
        _refuse(unknown, [EngineOptions] if config is None else [EngineOptions, config])
    return parsed.engine, getattr(parsed, "script", None)


def _refuse(unknown: Sequence[str], owners: Sequence[type]) -> None:
    first = next((word for word in unknown if word.startswith("-")), unknown[0])
    if not first.startswith("-"):
        raise BadInput("run", f"unexpected argument {first!r}", fix="options begin with --")
    name = first.split("=")[0]
    known = [option for owner in owners for option in _option_names(owner)]
    near = difflib.get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.0)
    fix = f"the nearest known option is {near[0]}" if near else ""
    raise BadInput("run", f"unknown option {name}", fix=f"{fix} (see --help)".strip())


def _option_names(owner: type) -> Iterator[str]:
    hints = get_type_hints(owner)
    for field in dataclasses.fields(owner):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _option_names(hints[field.name])
        else:
            option = field.name.replace("_", "-")
            yield f"--{option}"
            if hints[field.name] is bool:
                yield f"--no-{option}"
