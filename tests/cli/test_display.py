"""Both displays, from one status, and how they behave over a run."""

import asyncio
import dataclasses
import io

import pytest
from rich.console import Console

from rlinf_async.cli.display import NoDisplay, PlainDisplay, RichDisplay, choose
from rlinf_async.cli.frame import HISTORY, SPARKS, Painter, shares_to_cells, sparkline
from rlinf_async.cli.line import duration, number, remaining_s, status_line
from rlinf_async.execution.status import RunStatus

STATUS = RunStatus(
    title="ppo_mujoco · HalfCheetah-v5",
    phase="training",
    elapsed_s=80.0,
    iteration=100,
    iterations=250,
    env_steps=204_800,
    env_steps_per_s=40_960.0,
    return_mean=1234.56,
    episodes=320,
    lag=(0, 0.96, 1),
    losses={"zeta": 1.0, "value_loss": 0.43, "policy_loss": -0.0123},
    streams={"segments": (3, 8)},
    stages={
        "rollout": {"working": 0.25, "input": 0.75},
        "train": {"working": 0.93, "devices": 0.07},
    },
    hosts={"env-0": "collect 0.2 s"},
    plan="hybrid (trial)",
    loop_lag_ms=2.0,
)
EMPTY = RunStatus(
    title="t", phase="starting", elapsed_s=0.0, iteration=0, iterations=0, env_steps=0,
    env_steps_per_s=0.0, return_mean=None, episodes=0, lag=(0, 0.0, 0),
)  # fmt: skip


def drawn(status: RunStatus, *, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Painter().paint(status, width=width))
    return console.file.getvalue().splitlines()


def test_panel_shows_all_parts():
    text = "\n".join(drawn(STATUS))
    for part in ("HalfCheetah", "40%", "100/250", "eta 0:08", "204,800", "40,960", "1,234.6",
                 "policy_loss -0.012", "0 / 0.96 / 1", "3/8", "input 75%", "env-0", "training",
                 "hybrid (trial)", "■ devices"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("status", [STATUS, EMPTY], ids=["full", "empty"])
def test_panel_never_is_wider_than_the_terminal(status, width):
    lines = drawn(status, width=width)
    assert {len(line) for line in lines} == {min(width, 100)}


def test_line_is_plain_ascii_with_the_waits():
    line = status_line(STATUS)
    assert line.isascii()
    assert line.isprintable()
    for part in ("100/250 (40%) eta 0:08", "env steps 204,800 (40,960/s)", "return 1234.6",
                 "lag 0/1.0/1", "policy_loss -0.012", "waits rollout 75% input"):  # fmt: skip
        assert part in line
    assert "train 7%" not in line
    assert status_line(EMPTY) == "[0:00] starting"


def test_well_known_losses_come_first():
    assert status_line(STATUS).index("policy_loss") < status_line(STATUS).index("zeta")


def test_late_loop_is_reported():
    late = dataclasses.replace(STATUS, loop_lag_ms=120.0)
    assert "loop late 120 ms" in status_line(late)
    assert "loop late" not in status_line(STATUS)


def test_no_eta_before_a_rate_is_known():
    assert remaining_s(EMPTY) is None
    assert remaining_s(dataclasses.replace(STATUS, env_steps_per_s=0.0)) is None


def test_stacked_bar_fills_its_width_exactly_where_shares_sum_to_one():
    shares = {"working": 1 / 3, "input": 1 / 3, "strange": 1 / 3}
    assert sum(count for _, count in shares_to_cells(shares, 28)) == 28
    assert sum(count for _, count in shares_to_cells({"working": 0.5}, 28)) == 14
    assert sum(count for _, count in shares_to_cells({"working": 0.9, "input": 0.4}, 28)) == 28
    assert shares_to_cells({}, 28) == []


def test_sparkline_spans_low_to_high_in_a_bounded_width():
    assert sparkline([], 10) == ""
    assert sparkline([5.0], 10) == SPARKS[0]
    assert sparkline([0.0, 1.0], 10) == SPARKS[0] + SPARKS[-1]
    assert len(sparkline(list(range(1000)), 20)) == 20


def test_history_stays_bounded_over_a_long_run():
    painter = Painter()
    for iteration in range(5000):
        status = dataclasses.replace(STATUS, iteration=iteration, return_mean=float(iteration))
        painter._remember(status)
    assert len(painter._returns) <= 2 * HISTORY
    assert painter._returns == sorted(painter._returns)
    assert painter._returns[0] < 500


def test_formats():
    assert [duration(s) for s in (7.2, 754, 3723)] == ["0:07", "12:34", "1:02:03"]
    assert [number(v) for v in (0.0, 12345.6, 0.5, 1e-5)] == ["0.000", "12,346", "0.500", "1.0e-05"]


async def shown(display, status_of, *, until) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(display.show(status_of))
        await until.wait()
        task.cancel()


def test_plain_display_prints_at_once_regularly_and_at_the_end():
    out, done = io.StringIO(), asyncio.Event()
    calls = []

    def status_of() -> RunStatus:
        calls.append(1)
        if len(calls) == 3:
            done.set()
        return dataclasses.replace(STATUS, iteration=len(calls))

    asyncio.run(shown(PlainDisplay(interval_s=0.001, out=out), status_of, until=done))
    lines = out.getvalue().splitlines()
    assert len(lines) == len(calls) >= 4
    assert f"| {len(calls)}/250" in lines[-1]


def test_plain_display_outlives_its_reader():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    done = asyncio.Event()

    def status_of() -> RunStatus:
        done.set()
        return STATUS

    asyncio.run(shown(PlainDisplay(interval_s=60.0, out=Closed()), status_of, until=done))


def test_rich_display_draws_and_leaves_the_last_frame(capsys):
    done = asyncio.Event()

    def status_of() -> RunStatus:
        done.set()
        return STATUS

    asyncio.run(shown(RichDisplay(), status_of, until=done))
    assert "HalfCheetah" in capsys.readouterr().out


def test_output_that_is_no_terminal_gets_plain_lines(monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(choose("auto", out=io.StringIO()), PlainDisplay)
    assert isinstance(choose("auto", out=Terminal()), RichDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose("auto", out=Terminal()), PlainDisplay)
    assert isinstance(choose("rich", out=io.StringIO()), RichDisplay)
    assert isinstance(choose("plain", out=Terminal()), PlainDisplay)
    assert isinstance(choose("none"), NoDisplay)
