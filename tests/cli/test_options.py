"""The flat option list: engine and script, unknown names, core lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.cli.main import main
from rlinf_async.cli.options import parse_options
from rlinf_async.errors import BadInput
from rlinf_async.execution.options import EngineOptions, format_cores, parse_cores
from rlinf_async.execution.script import load_script


@pytest.fixture
def config(write_script, good):
    return load_script(write_script(good)).Config


def test_engine_and_script_options_are_one_flat_list(config):
    arguments = ["--seed", "7", "--env-count", "8", "--mode", "serial", "--kind", "b"]
    engine, script = parse_options("s.py", config, arguments)
    assert engine == EngineOptions(seed=7, mode="serial")
    assert script == config(env_count=8, kind="b")


def test_help_lists_both_groups_with_their_docstrings(write_script, good, capsys):
    path = write_script(good)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for expected in ("engine options", "--run-dir", "script options", "--env-count",
                     "How many environments.", "A tiny script's own options.", "130"):  # fmt: skip
        assert expected in text


@pytest.mark.parametrize(
    ("given_name", "nearest"),
    [("--env-cuont", "--env-count"), ("--sede", "--seed"), ("--max_lagg=3", "--max-lag")],
)
def test_unknown_option_names_the_nearest_known_one(
    given_name, nearest, write_script, good, capsys
):
    assert main(["run", str(write_script(good)), given_name, "3"]) == 2
    message = capsys.readouterr().err
    assert f"unknown option {given_name.split('=')[0]}" in message
    assert f"nearest known option is {nearest} " in message
    assert len(message.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--mode", "serail"], ["--seed"]])
def test_malformed_value_is_exit_code_2(arguments, write_script, good, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", str(write_script(good)), *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "0"], "--hosts: too small; expected at least 1; got 0"),
        (["--devices", "9999"], "may not use core 9999"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_refused_option_is_one_message(arguments, message, write_script, good, capsys):
    path = write_script(good)
    assert main(["run", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (path.parent / "runs").exists()


def test_config_that_refuses_its_values_is_bad_input(write_script, good):
    text = good.replace("\n\nasync", "\n    def __post_init__(self):\n        1 / 0\n\n\nasync")
    with pytest.raises(BadInput, match="ZeroDivisionError"):
        parse_options("s.py", load_script(write_script(text)).Config, [])


def test_top_level_help_version_and_unknown_command(capsys):
    assert main(["--help"]) == 0
    assert main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert "exit codes" in printed
    assert "rlinf_async 0." in printed
    assert main(["rum"]) == 2
    assert main([]) == 2
    assert main(["run"]) == 2
    assert "did you mean 'run'?" in capsys.readouterr().err


def test_core_lists():
    assert parse_cores("", {3, 1}) == (1, 3)
    assert parse_cores("0-2, 5", range(8)) == (0, 1, 2, 5)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "1,1", "0-3,2", "9", "1_0", "²"])
def test_what_is_no_core_list_is_refused(text):
    with pytest.raises(BadInput, match="--devices"):
        parse_cores(text, range(8))


@given(st.sets(st.integers(0, 40), min_size=1))
def test_formatted_cores_read_back(cores):
    assert parse_cores(format_cores(cores), range(41)) == tuple(sorted(cores))
