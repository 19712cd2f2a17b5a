"""Every way in which a script can be unusable ends in one message and exit code 2."""

import subprocess
import sys

import pytest

from rlinf_async.cli.main import main
from rlinf_async.errors import BadInput
from rlinf_async.execution.options import RESERVED
from rlinf_async.execution.references import SCRIPT_MODULE
from rlinf_async.execution.script import find_config, find_main, load_script

CONFIG = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    x: int = 1\n"

BROKEN = {
    "raises": ("def f():\n    raise ValueError('deep')\nf()\n", "ValueError: deep"),
    "syntax": ("def f(:\n", "SyntaxError"),
    "missing_import": ("import no_such_package_anywhere\n", "No module named 'no_such_package"),
    "exits": ("import sys\nsys.exit(3)\n", "the script ended itself"),
    "no_main": (CONFIG + "async def mian(run, cfg): ...\n", "did you mean 'mian'?"),
    "not_async": (CONFIG + "def main(run, cfg): ...\n", "main is not a coroutine function"),
    "generator": (CONFIG + "async def main(run, cfg):\n    yield 1\n", "not a coroutine function"),
    "arguments": (CONFIG + "async def main(run): ...\n", "main(run, cfg)"),
    "no_config": ("async def main(run, cfg): ...\nclass Confg: ...\n", "did you mean 'Confg'?"),
    "plain_config": ("async def main(run, cfg): ...\nclass Config: ...\n", "not a dataclass"),
    "reserved": (
        CONFIG + "    seed: int = 3\nasync def main(run, cfg): ...\n",
        "Config.seed has the name of an engine option",
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_script_is_one_message_and_exit_code_2(name, write_script, capsys):
    text, expected = BROKEN[name]
    path = write_script(text)

    assert main(["run", str(path)]) == 2

    captured = capsys.readouterr()
    assert expected in captured.err
    assert str(path) in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("error: ") == 1
    assert captured.out == ""
    assert not (path.parent / "runs").exists()


def test_exception_at_import_shows_only_the_frames_of_the_script(write_script):
    path = write_script(BROKEN["raises"][0])
    with pytest.raises(BadInput) as caught:
        load_script(path)
    text = str(caught.value)
    assert text.count('File "') == 2
    assert "importlib" not in text
    assert SCRIPT_MODULE not in sys.modules


def test_missing_file_names_its_neighbours(write_script, good):
    path = write_script(good, "ppo_mujoco.py")
    with pytest.raises(BadInput, match=r"did you mean 'ppo_mujoco.py'\?"):
        load_script(path.with_name("ppo_mujocco.py"))
    with pytest.raises(BadInput, match="is a folder"):
        load_script(path.parent)
    with pytest.raises(BadInput, match="there is no folder"):
        load_script(path.parent / "nowhere" / "x.py")


def test_good_script_loads_once_with_its_folder_importable(write_script, good):
    write_script("VALUE = 7\n", "beside_the_script.py")
    path = write_script("from beside_the_script import VALUE\n" + good)
    module = load_script(path)
    assert module is load_script(str(path)) is sys.modules[SCRIPT_MODULE]
    assert module.VALUE == 7
    assert find_config(module, reserved=RESERVED).__module__ == SCRIPT_MODULE
    assert find_main(module).__name__ == "main"
    del sys.modules["beside_the_script"]


@pytest.mark.process
def test_command_line_ends_with_exit_code_2_and_no_traceback(write_script):
    path = write_script("async def main(run, cfg): ...\n")
    command = [sys.executable, "-m", "rlinf_async", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"error: {path}: has no Config; expected a dataclass named Config"
    )


@pytest.mark.process
def test_package_import_is_light():
    code = (
        "import sys, rlinf_async; "
        "print([m for m in ('torch', 'mujoco', 'gymnasium', 'numpy', 'tyro') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
