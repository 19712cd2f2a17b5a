"""Interpreters of suites: pinned sets, whole installations only, and clear words for the rest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_async.cli.main import main
from rlinf_async.errors import BadInput
from rlinf_async.hardware import interpreters


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(interpreters.VARIABLE, str(tmp_path / "venvs"))
    return tmp_path / "venvs"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A suite whose only packages are those of the core, installed from this environment."""
    sets = tmp_path / "sets"
    sets.mkdir()
    (sets / "_core.txt").write_text("")
    (sets / "tiny.txt").write_text("# summary: nothing\n# example: tiny/thing\n")
    monkeypatch.setattr(interpreters, "_REQUIREMENTS", sets)
    return interpreters.named("tiny")


@pytest.fixture
def lent(monkeypatch):
    """New environments see the packages of this one (pip too): nothing is downloaded."""
    run = interpreters._run
    ours = next(Path(p) for p in sys.path if p.endswith("site-packages"))

    def lending(command, suite):
        if "venv" not in command:
            run(command, suite)
            return
        run([*command, "--without-pip"], suite)
        python = Path(command[-1]) / "bin" / "python"
        found = "import sysconfig; print(sysconfig.get_path('purelib'))"
        told = subprocess.run([python, "-c", found], capture_output=True, text=True, check=True)
        (Path(told.stdout.strip()) / "lent.pth").write_text(f"{ours}\n")

    monkeypatch.setattr(interpreters, "_run", lending)


def test_every_suite_pins_everything_and_says_what_it_is():
    assert {"metaworld", "robotics", "dm_control", "pusht", "robosuite"} <= set(
        interpreters.suites()
    )
    for suite in interpreters.suites().values():
        assert suite.summary
        assert suite.example.startswith(f"{suite.name}/")
        names = [package.partition("==")[0].lower() for package in suite.requirements]
        assert all("==" in package for package in suite.requirements)
        assert len(set(names)) == len(names)
        assert {"numpy", "pyzmq", "orjson", "structlog", "uvloop"} <= set(names)
        assert "torch" not in names


def test_ids_belong_to_suites_by_their_first_part():
    assert interpreters.suite_of("metaworld/push-v3").name == "metaworld"
    assert interpreters.suite_of("ALE/Pong-v5") is None
    assert interpreters.suite_of("HalfCheetah-v5") is None
    assert interpreters.suite_of({"$name": "a:b"}) is None


def test_what_is_not_installed_is_refused_with_the_command():
    with pytest.raises(BadInput, match=r"not installed; run `python -m rlinf_async venvs install"):
        interpreters.interpreter_of(interpreters.named("metaworld"))
    with pytest.raises(BadInput, match=r"no suite 'metawrld'.*metaworld"):
        interpreters.named("metawrld")


def test_an_installation_is_whole_or_not_there(tiny, lent, own_folder, capsys):
    done = interpreters.install(tiny, print)
    assert done.current
    assert interpreters.interpreter_of(tiny) == done.python
    code = "import rlinf_async, sys; print(rlinf_async.__file__, sys.prefix)"
    told = subprocess.run([done.python, "-c", code], capture_output=True, text=True, check=True)
    assert str(own_folder / "tiny") in told.stdout
    interpreters.install(tiny, print)
    assert "installed already" in capsys.readouterr().out
    # Without its marker it was interrupted.
    (own_folder / "tiny" / "installed.json").unlink()
    assert interpreters.installed(tiny) is None
    assert interpreters.remove(tiny)
    assert not (own_folder / "tiny").exists()
    assert not interpreters.remove(tiny)


def test_other_versions_are_refused(tiny, lent, own_folder):
    interpreters.install(tiny, print)
    marker = own_folder / "tiny" / "installed.json"
    told = json.loads(marker.read_text())
    marker.write_text(json.dumps({**told, "digest": "older"}))
    with pytest.raises(BadInput, match="other versions"):
        interpreters.interpreter_of(tiny)


def test_a_relative_folder_gives_an_environment_that_works_from_anywhere(
    tiny, lent, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(interpreters.VARIABLE, "here")
    done = interpreters.install(tiny, print)
    assert done.python.is_absolute()
    code = "import rlinf_async; print(rlinf_async.__file__)"
    told = subprocess.run(
        [done.python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert str(tmp_path / "here" / "tiny") in told.stdout


def test_one_that_imports_another_copy_of_this_package_is_refused_and_linked_anew(
    tiny, lent, own_folder, tmp_path, capsys
):
    interpreters.install(tiny, print)
    link = own_folder / "tiny" / "rlinf_async_link" / "rlinf_async"
    link.unlink()
    link.symlink_to(tmp_path)
    with pytest.raises(BadInput, match=f"another copy.*{tmp_path}.*venvs install tiny"):
        interpreters.interpreter_of(tiny)
    before = (own_folder / "tiny" / "installed.json").stat().st_mtime_ns
    interpreters.install(tiny, print)
    assert "linking it to" in capsys.readouterr().out
    assert interpreters.interpreter_of(tiny).exists()
    assert (own_folder / "tiny" / "installed.json").stat().st_mtime_ns == before


def test_what_pip_says_is_passed_on(lent):
    wrong = interpreters.Suite(
        name="tiny", summary="", example="", requirements=("./there-is-no-such-folder",)
    )
    with pytest.raises(BadInput, match=r"(?s)pip install.*ended with 1.*no-such-folder"):
        interpreters.install(wrong, print)
    assert interpreters.installed(wrong) is None


def test_a_folder_that_cannot_be_written_is_named(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(interpreters.VARIABLE, str(tmp_path / "file" / "venvs"))
    with pytest.raises(BadInput, match=interpreters.VARIABLE):
        interpreters.install(tiny, print)


def test_the_command_lists_and_refuses(capsys, tiny):
    assert main(["venvs", "list"]) == 0
    listed = capsys.readouterr().out
    assert "not installed: venvs install tiny" in listed
    assert main(["venvs", "remove", "tiny"]) == 0
    assert "was not installed" in capsys.readouterr().out
    assert main(["venvs", "--help"]) == 0
    assert main(["venvs", "install"]) == 2
    assert main(["venvs", "install", "tny"]) == 2
    assert "tiny" in capsys.readouterr().err
