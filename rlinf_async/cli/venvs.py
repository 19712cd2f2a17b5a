"""`python -m rlinf_async venvs`: the interpreters that simulators live in."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_async.cli import exits
from rlinf_async.errors import BadInput
from rlinf_async.hardware import interpreters

USAGE = """\
usage: python -m rlinf_async venvs list
       python -m rlinf_async venvs install NAME...
       python -m rlinf_async venvs remove NAME...

Suites of environments whose dependencies contradict each other live in virtual environments of
their own. Once one is installed, `run.envs("NAME/...")` uses it by itself. They lie in {folder};
{variable} names another folder."""


def command(arguments: Sequence[str]) -> int:
    """List, install or remove environments."""
    verb, *names = arguments or ["list"]
    if verb in ("-h", "--help"):
        folder = interpreters.venvs_folder()
        print(USAGE.format(folder=folder, variable=interpreters.VARIABLE))
        return exits.OK
    if verb == "list" and not names:
        print(_listing())
        return exits.OK
    if verb not in ("install", "remove") or not names:
        raise BadInput(
            "venvs", "not understood", expected="list, install NAME or remove NAME", got=arguments
        )
    for suite in [interpreters.named(name) for name in names]:
        if verb == "install":
            done = interpreters.install(suite, print)
            print(f"{suite.name}: ready, {done.python}; try run.envs({suite.example!r}, ...)")
        elif interpreters.remove(suite):
            print(f"{suite.name}: removed")
        else:
            print(f"{suite.name}: was not installed")
    return exits.OK


def _listing() -> str:
    lines = [f"in {interpreters.venvs_folder()}:"]
    for suite in interpreters.suites().values():
        found = interpreters.installed(suite)
        lines.append(f"  {suite.name:<12} {suite.summary}")
        if found is None:
            lines.append(f"  {'':<12} not installed: venvs install {suite.name}")
            continue
        mujoco = found.versions.get("mujoco")
        parts = [f"{interpreters.size_bytes(suite) / 1e6:,.0f} MB"]
        parts += [f"mujoco {mujoco}"] if mujoco else []
        parts += [] if found.current else [f"other versions: venvs install {suite.name}"]
        lines.append(f"  {'':<12} installed, {', '.join(parts)}; e.g. {suite.example}")
    return "\n".join(lines)
