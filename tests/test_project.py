"""The project's own files keep their promises: pins, sizes, versions, links, commands."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rlinf_async

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CODE = ("rlinf_async", "workers", "envs", "tools", "examples", "tests")

BENCHES = [
    path
    for path in sorted((ROOT / "tools" / "bench").glob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]
FILE_LINES = 400
FUNCTION_LINES = 60
SCRIPT_LINES = 150


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    yield from python_files(*CODE)
    yield from sorted((ROOT / "docs").rglob("*.md"))
    # In a linked worktree `.git` is a file, and names its repository.
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file() and path.name != ".git")
    yield from (path for path in sorted((ROOT / "tools").iterdir()) if path.is_file())


def pins() -> dict[str, str]:
    """Canonical name to version of every line of constraints.txt."""
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[Requirement]:
    """What the project asks for, all extras included."""
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(r) for r in (*PROJECT["dependencies"], *(r for e in extras for r in e))]


def installed_closure() -> dict[str, str]:
    """Name to version of every installed distribution that the project needs, however far."""
    found: dict[str, str] = {}
    queue = [(each, "") for each in requirements()]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found or requirement.extras:
            found[name] = distribution.version
            further = [Requirement(r) for r in distribution.requires or ()]
            queue += [(r, e) for r in further for e in ("", *requirement.extras)]
    return found


def test_every_dependency_of_every_extra_is_pinned_within_its_bounds():
    pinned = pins()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"constraints.txt does not pin {name}"
        assert requirement.specifier.contains(pinned[name]), f"{requirement} but {pinned[name]}"


def test_what_is_installed_is_what_is_pinned():
    pinned = pins()
    for name, version in installed_closure().items():
        # A build suffix such as +cpu is the same release.
        assert pinned.get(name) == version.partition("+")[0], f"{name} {version} is not pinned so"


def test_the_change_log_and_the_package_name_the_projects_version():
    assert rlinf_async.__version__ == PROJECT["version"]
    headings = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert PROJECT["version"] in headings


def test_the_licence_is_the_one_that_is_declared():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_files_and_functions_are_short():
    long = []
    for path in python_files(*CODE):
        text = path.read_text()
        where = path.relative_to(ROOT)
        if text.count("\n") > FILE_LINES:
            long.append(f"{where}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{where}:{node.lineno} {node.name}: {lines} lines")
    assert not long, "\n".join(long)


def test_an_example_is_one_short_script():
    for path in python_files("examples"):
        assert path.read_text().count("\n") <= SCRIPT_LINES, path


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"\b(TODO|FIXME|XXX)\b", "unfinished work"),
        (r"/(root|home/\w+|wor[k])/", "a path of one machine"),
        (r"pyp[i]\.org|pythonhoste[d]|deb\.debia[n]", "a package registry"),
    ],
)
def test_no_file_holds(pattern, why):
    me = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {why}: {line.strip()[:80]}"
        for path in text_files()
        if path != me
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_between_the_projects_files_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert not missing


@pytest.mark.parametrize("command", ["tools/test", "tools/quickstart"])
def test_the_two_commands_explain_themselves(command):
    done = subprocess.run([ROOT / command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"usage: {command}" in done.stdout


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_every_benchmark_explains_itself(bench):
    done = subprocess.run(
        [sys.executable, bench, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
