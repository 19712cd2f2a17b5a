"""Simulators in interpreters of their own: where they lie, how they are made, which one runs what.

Suites of environments contradict each other's dependencies, so each has a virtual environment with
a pinned set of packages (`suites/<name>.txt`). Besides its simulator it holds the slim core that a
host needs; this package itself is linked into it, so both sides always run the same code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.errors import BadInput, nearest

VARIABLE = "RLINF_ASYNC_VENVS"
"""Environment variable with the folder of all such environments."""
_MARKER = "installed.json"
_LINK = "rlinf_async_link"
_PACKAGE = Path(__file__).resolve().parents[1]
_REQUIREMENTS = Path(__file__).parent / "suites"
_CORE = "_core.txt"
_TAIL_LINES = 15

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A set of environments whose ids begin with `<name>/`."""

    name: str
    summary: str
    example: str
    """An id."""
    requirements: tuple[str, ...]
    """Pinned, the core's included."""

    @property
    def digest(self) -> str:
        """Changes with every requirement."""
        return hashlib.sha256("\n".join(self.requirements).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A complete environment of a suite."""

    python: Path
    versions: dict[str, str]
    """Of its packages."""
    current: bool
    """Whether it has the requirements of this version."""
    package: Path
    """The copy of this package that it imports."""


def suites() -> dict[str, Suite]:
    """All suites by name."""
    files = sorted(_REQUIREMENTS.glob("[a-z]*.txt"))
    return {path.stem: _read(path) for path in files}


def suite_of(env_id: object) -> Suite | None:
    """The suite that an environment id belongs to; None for all others."""
    if not isinstance(env_id, str) or "/" not in env_id:
        return None
    return suites().get(env_id.partition("/")[0])


def venvs_folder() -> Path:
    """Where the environments are: $RLINF_ASYNC_VENVS, else the user's data folder."""
    if path := os.environ.get(VARIABLE):
        # Absolute: the link to this package is read from within the environment.
        return Path(path).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "rlinf_async" / "venvs"


def interpreter_of(suite: Suite) -> Path:
    """The Python of a suite's environment.

    Raises:
        BadInput: it is not installed, has other versions than this package wants, or imports
            another copy of it, whose messages this one may not understand.
    """
    found = installed(suite)
    command = f"python -m rlinf_async venvs install {suite.name}"
    if found is None:
        raise BadInput(f"suite {suite.name!r}", "is not installed", fix=f"run `{command}`")
    if not found.current:
        raise BadInput(
            f"suite {suite.name!r}", "is installed with other versions", fix=f"run `{command}`"
        )
    if found.package != _PACKAGE:
        raise BadInput(
            f"suite {suite.name!r}",
            "its environment imports another copy of this package",
            expected=_PACKAGE,
            got=found.package,
            fix=f"run `{command}`, which links it anew",
        )
    return found.python


def installed(suite: Suite) -> Installed | None:
    """The suite's environment if it is complete."""
    folder = venvs_folder() / suite.name
    try:
        told = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return None
    python = folder / "bin" / "python"
    if not python.exists():
        return None
    return Installed(
        python=python,
        versions=told["versions"],
        current=told["digest"] == suite.digest,
        package=(folder / _LINK / _PACKAGE.name).resolve(),
    )


def named(name: str) -> Suite:
    """The suite of that name; BadInput with the nearest one."""
    known = suites()
    if name not in known:
        raise BadInput(
            "venvs", f"no suite {name!r}", expected=", ".join(known), fix=nearest(name, known)
        )
    return known[name]


def install(suite: Suite, say: Say) -> Installed:
    """Make the suite's environment anew, unless it is complete and current.

    A marker is removed first and written last, so that an interrupted installation is never taken
    for a complete one. One that imports another copy of this package is only linked anew.

    Raises:
        BadInput: no permission, or pip failed; its last lines are in the message.
    """
    found = installed(suite)
    folder = venvs_folder() / suite.name
    if found is not None and found.current:
        say(f"{suite.name} is installed already, in {folder}")
        if found.package != _PACKAGE:
            say(f"linking it to {_PACKAGE}")
            _link_package(folder)
        return installed(suite) or found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _forget(folder)
        say(f"making {folder}")
        _run([sys.executable, "-m", "venv", str(folder)], suite)
    except OSError as cause:
        raise BadInput(
            f"suite {suite.name!r}",
            f"cannot write to {folder.parent}: {cause.strerror}",
            fix=f"set {VARIABLE} to a folder that you may write to",
        ) from cause
    python = str(folder / "bin" / "python")
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(suite.requirements) + "\n")
    say(f"installing {len(suite.requirements)} packages at pinned versions")
    # All that is needed is in the list: pip need not look for what it depends on.
    pip = [python, "-m", "pip", "install", "--progress-bar", "off", "--no-deps"]
    _run([*pip, "-r", str(wanted)], suite)
    _make_importable(folder, python)
    _complete(folder, python, suite)
    done = installed(suite)
    assert done is not None
    return done


def remove(suite: Suite) -> bool:
    """Delete the suite's environment; False if there is none."""
    folder = venvs_folder() / suite.name
    if not folder.exists():
        return False
    _forget(folder)
    return True


def size_bytes(suite: Suite) -> int:
    """What the suite's environment takes on disk; files that cannot be read count nothing."""
    total = 0
    for path in (venvs_folder() / suite.name).rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _read(path: Path) -> Suite:
    """A requirement set: `# key: value` lines, then packages."""
    told: dict[str, str] = {}
    packages: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            told[key.strip()] = value.strip()
        elif line.strip():
            packages.append(line.strip())
    core = (_REQUIREMENTS / _CORE).read_text().split()
    given = {package.partition("==")[0].lower() for package in packages}
    packages += [package for package in core if package.partition("==")[0].lower() not in given]
    return Suite(
        name=path.stem,
        summary=told["summary"],
        example=told["example"],
        requirements=tuple(packages),
    )


def _forget(folder: Path) -> None:
    """Delete an environment, its marker first."""
    (folder / _MARKER).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def _link_package(folder: Path) -> None:
    """Link this very package, and nothing of what lies beside it here."""
    link = folder / _LINK / _PACKAGE.name
    link.parent.mkdir(exist_ok=True)
    draft = link.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(_PACKAGE)
    draft.replace(link)


def _make_importable(folder: Path, python: str) -> None:
    """Make the linked package importable there."""
    _link_package(folder)
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    (Path(where.stdout.strip()) / "rlinf_async.pth").write_text(f"{folder / _LINK}\n")


def _complete(folder: Path, python: str, suite: Suite) -> None:
    """Try the environment, and mark it as complete."""
    # Isolated: neither PYTHONPATH nor the present folder may stand in for the link.
    _run([python, "-I", "-c", "import rlinf_async.execution.host"], suite)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    versions = {each["name"]: each["version"] for each in json.loads(listed.stdout)}
    marker = folder / f"{_MARKER}.draft"
    marker.write_text(json.dumps({"digest": suite.digest, "versions": versions}))
    marker.replace(folder / _MARKER)


def _run(command: list[str], suite: Suite) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-_TAIL_LINES:]
        raise BadInput(
            f"suite {suite.name!r}",
            f"`{' '.join(command[:4])} ...` ended with {done.returncode}:\n" + "\n".join(lines),
        )
