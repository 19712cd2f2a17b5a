"""`python -m rlinf_async plan SCRIPT [options]`: what the planner would choose, and why."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from rlinf_async.cli import exits
from rlinf_async.errors import BadInput, EngineError, PlanReady, nearest

WIDTH = 240
"""At most, of a table; a narrow terminal wraps its lines, which is better than cutting words."""
USAGE = """\
usage: python -m rlinf_async plan SCRIPT [--json] [--devices cpu:N] [options of run]
       python -m rlinf_async plan --cluster FILE [--json]

Runs the script until its planner has chosen, a few seconds of training that leave nothing behind,
and prints every candidate: predicted time of an iteration, where it goes, what was measured,
memory, and the choice with its reason.

  --devices cpu:N  also: what these costs say of N cores
  --cluster FILE   no script: a simulated cluster, a JSON object such as
                   {"profile": "flat", "devices": 64, "max_lag": 1}
                   profiles: cpu-bound, flat, language
  --json           one JSON document on standard output

All options of `run SCRIPT` may follow; --mode and --placement say nothing here.
"""


def command(arguments: Sequence[str]) -> int:
    """Print a plan; return the exit code."""
    rest = list(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if rest else sys.stderr)
        return exits.OK if rest else exits.BAD_INPUT
    as_json = _flag(rest, "--json")
    cluster = _value(rest, "--cluster", lambda value: True)
    cores = _cores(_value(rest, "--devices", lambda value: value.startswith("cpu:")))
    if cluster is not None:
        if rest:
            raise BadInput("plan", f"--cluster goes without {rest[0]}", fix="leave one of them out")
        document = _cluster_plan(_read_cluster(Path(cluster)))
    else:
        document = _script_plan(rest, cores)
    if as_json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(document)
    return exits.OK


def _script_plan(arguments: list[str], cores: int | None) -> dict[str, Any]:
    """The plan of a job that runs until it has one, in a folder that is removed."""
    from rlinf_async.cli.display import choose
    from rlinf_async.cli.options import parse_options
    from rlinf_async.cli.report import leaves
    from rlinf_async.execution import logs
    from rlinf_async.execution.options import RESERVED
    from rlinf_async.execution.run_folder import RunFolder
    from rlinf_async.execution.script import find_config, find_main, load_script
    from rlinf_async.execution.session import execute

    import rlinf_async.workers  # noqa: F401  isort: skip - registers who plays which role

    given, *rest = arguments
    if given.startswith("-"):
        raise BadInput("plan", f"option {given} before the script", fix="see plan --help")
    module = load_script(given)
    options, config = parse_options(given, find_config(module, reserved=RESERVED), rest)
    parent = Path(tempfile.mkdtemp(prefix="rlinf-plan-"))
    try:
        options = replace(options, run_dir=parent / "run", mode="auto", placement="")
        folder = RunFolder.create(options.run_dir, script=Path(given), started=_now())
        logs.configure("controller", folder.logs)
        execute(find_main(module), config, options, folder, choose(options.progress), planning=True)
    except BaseException as error:
        ready = next((each for each in leaves(error) if isinstance(each, PlanReady)), None)
        if ready is None:
            raise next(iter(leaves(error)), error) from None
        document = {"script": given, **ready.document}
        if cores is not None:
            document["what_if"] = {"cores": cores, "candidates": ready.what_if(cores)}
        return document
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    raise EngineError(f"{given} ended before its plan was ready; give it more iterations")


def _cluster_plan(asked: dict[str, Any]) -> dict[str, Any]:
    """Every plan of a profile on a simulated cluster."""
    from rlinf_async.scheduling.profiles import Links, profile
    from rlinf_async.scheduling.rescoring import choose_with_variation

    shape = profile(asked["profile"])
    flow = shape.flow(asked["devices"], asked["max_lag"])
    costs = shape.costs(flow, asked["devices"], Links(**asked["links"]))
    decision, scored = choose_with_variation(
        flow, costs, {"gpu": asked["devices"]}, shape.variation
    )
    simulated = {each.candidate.plan: each.seconds for each in scored}
    return {
        "simulated": True,
        "cluster": asked,
        "origin": shape.origin,
        "slots": flow.slots,
        "candidates": [
            {
                "plan": each.plan.describe(),
                "predicted_s": each.seconds if not each.refused else None,
                "simulated_s": simulated.get(each.plan),
                "parts_s": dict(each.parts),
                "bound_by": list(each.bound_by),
                "memory_bytes": list(each.memory_bytes),
                "refused": each.refused,
            }
            for each in decision.candidates
        ],
        "chosen": decision.chosen.plan.describe(),
        "reason": decision.reason,
    }


def _read_cluster(file: Path) -> dict[str, Any]:
    defaults: dict[str, Any] = {"profile": "", "devices": 8, "max_lag": 0, "links": {}}
    try:
        asked = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise BadInput("--cluster", f"{file} cannot be read: {error}") from None
    if not isinstance(asked, dict):
        raise BadInput("--cluster", f"{file} holds no object", expected=str(defaults))
    if unknown := [key for key in asked if key not in defaults]:
        raise BadInput(
            "--cluster",
            f"unknown key {unknown[0]!r}",
            expected=", ".join(defaults),
            fix=nearest(unknown[0], defaults),
        )
    found = defaults | asked
    for key, least in (("devices", 1), ("max_lag", 0)):
        if not isinstance(found[key], int) or found[key] < least:
            raise BadInput("--cluster", key, expected=f"an integer from {least}", got=found[key])
    return found


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console

    from rlinf_async.cli.plan_table import candidates_table

    console = Console(soft_wrap=True)
    console.width = max(console.width, WIDTH)
    if document.get("simulated"):
        console.print(f"SIMULATED {document['cluster']}: {document['origin']}")
    else:
        console.print(
            f"{document['script']}: {document['env_steps']:,} env steps an iteration, max_lag "
            f"{document['max_lag']}, planned after {document['iterations_measured']} iterations"
        )
    console.print(candidates_table(document["candidates"], document["chosen"]))
    console.print(f"chosen: {document['chosen']}: {document['reason']}")
    if memory := document.get("memory_bytes"):
        hosts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in memory["hosts"].items())
        console.print(f"memory, MiB: shared rows {memory['rows'] / 2**20:,.1f}; at most {hosts}")
    if other := document.get("what_if"):
        console.print(f"what if there were {other['cores']} cores (~ marks what was not measured):")
        console.print(candidates_table(other["candidates"], ""))


def _cores(text: str | None) -> int | None:
    if text is None:
        return None
    number = text.removeprefix("cpu:")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 100_000):
        raise BadInput("--devices", f"{text!r} is no number of cores", expected="cpu:N")
    return int(number)


def _flag(arguments: list[str], name: str) -> bool:
    found = name in arguments
    if found:
        arguments.remove(name)
    return found


def _value(arguments: list[str], name: str, mine: Callable[[str], bool]) -> str | None:
    """Take `name VALUE` or `name=VALUE` out of the arguments, if the value is ours."""
    for at, word in enumerate(arguments):
        key, equals, value = word.partition("=")
        if key != name:
            continue
        if not equals:
            if at + 1 == len(arguments):
                raise BadInput("plan", f"{name} has no value", fix="see plan --help")
            value = arguments[at + 1]
        if not mine(value):
            return None
        del arguments[at : at + (1 if equals else 2)]
        return value
    return None


def _now() -> Any:
    from datetime import datetime

    return datetime.now().astimezone()
