"""Loop, threads and processes: one trajectory, and the same words where something goes wrong."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from rlinf_async.envs.backends.choice import measure, quickest
from rlinf_async.envs.backends.processes import EnvProcessFailed
from rlinf_async.envs.contract import EnvCannotRestore
from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
from rlinf_async.envs.registry import make_cell
from rlinf_async.errors import BadInput
from rlinf_async.execution.references import describe
from tests.fixtures.envs import CountEnv, DieEnv
from tests.fixtures.seeds import next_seed

BACKENDS = ("loop", "threads", "processes")
N = 5


def cell_of(env: Any, backend: str, count: int = N, **more: Any) -> Any:
    described = env if isinstance(env, str) else describe(env, where="test")
    return make_cell({"env": described, "backend": backend, **more}, count, first_slot=10)


def played(cell: Any, chunk: int = 0) -> list[Any]:
    """A reset, steps of all slots, of some, retirements and back-fill."""
    rng, action = np.random.default_rng(0), cell.spaces.action
    seen: list[Any] = [cell.reset(range(N))]
    for t in range(14):
        shape = (N, chunk, *action.shape) if chunk else (N, *action.shape)
        values = (rng.random(shape) * 2).astype(action.row_dtype)
        step = cell.chunk_step if chunk else cell.step
        retire = t % 5 == 4
        result = step(values, lambda slot, t=t, no=retire: None if no else 100 * t + slot)
        seen.append(result)
        idle = [slot for slot in result.finished.tolist() if retire]
        if idle:
            seen.append(cell.begin(np.array(idle), [7 * slot for slot in idle]))
    return seen


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
        return
    assert_equal(one.observation, other.observation)
    for name in ("reward", "terminated", "truncated", "finished"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.final_observation is None) == (other.final_observation is None)
    if one.final_observation is not None:
        assert_equal(one.final_observation, other.final_observation)


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize(
    "env",
    [functools.partial(CountEnv, n=4), "CartPole-v1", "Pendulum-v1"],
    ids=["count", "pole", "old"],
)
def test_the_trajectory_is_the_same_wherever_it_is_stepped(
    env: Any, backend: str, chunk: int
) -> None:
    cells = [cell_of(env, each, time_limit=6) for each in ("loop", backend)]
    for one, other in zip(*(played(cell, chunk) for cell in cells), strict=True):
        assert_equal(one, other)
    for cell in cells:
        cell.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_names_slot_and_step(backend: str) -> None:
    cell = cell_of(functools.partial(DieEnv, k=2), backend)
    cell.reset(range(N))
    for _ in range(2):
        cell.step(np.zeros(N, np.int64), next_seed)
    with pytest.raises(Exception, match="died on purpose") as it:
        cell.step(np.zeros(N, np.int64), next_seed)
    words = f"{it.value} {getattr(it.value, '__notes__', '')}"
    assert "slot 10" in words
    assert "step 2" in words
    cell.close()


@pytest.mark.parametrize("how", ["exit", "SIGKILL", "SIGSEGV"])
def test_an_environment_that_takes_its_process_along_is_named(how: str) -> None:
    cell = cell_of(functools.partial(DieEnv, k=1, how=how), "processes")
    cell.reset(range(N))
    cell.step(np.zeros(N, np.int64), next_seed)
    with pytest.raises(EnvProcessFailed, match=r"step 1 of the episode of slot 1\d") as it:
        cell.step(np.zeros(N, np.int64), next_seed)
    assert ("exited with code 1" if how == "exit" else how) in str(it.value)
    cell.close()
    cell.close()


def test_an_environment_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlinf_async.envs.backends import processes

    cell = cell_of(functools.partial(DieEnv, k=0, how="sleep"), "processes", count=2)
    cell.reset(range(2))
    monkeypatch.setattr(processes, "LEAST_DEADLINE_S", 0.5)
    monkeypatch.setattr(processes, "DEADLINE_OVER_SLOWEST", 0.0)
    with pytest.raises(EnvProcessFailed, match=r"gave up after 0\.5 s waiting for step 0 of the"):
        cell.step(np.zeros(2, np.int64), next_seed)
    cell.close()


def test_no_process_outlives_its_cell() -> None:
    cell = cell_of("CartPole-v1", "processes")
    children = [part._process.pid for part in cell._parts]
    cell.close()
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIG_DFL)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_states_are_saved_and_restored(backend: str) -> None:
    cell = cell_of("Reacher-v5", backend, wrappers=["OrderEnforcing"])
    cell.reset(range(N))
    action = np.full((N, 2), 0.4, np.float32)
    cell.step(action, next_seed)
    saved = cell.save_state()
    expected = cell.step(action, next_seed)
    cell.step(action, next_seed)
    cell.restore_state(saved)
    assert_equal(cell.step(action, next_seed), expected)
    cell.close()


def test_what_cannot_restore_says_so_from_afar() -> None:
    cell = cell_of(functools.partial(CountEnv, n=3), "processes")
    cell.reset(range(N))
    with pytest.raises(EnvCannotRestore):
        cell.save_state()
    cell.close()


def test_an_environment_that_cannot_be_built_is_refused_from_afar() -> None:
    with pytest.raises(BadInput, match="died on purpose in __init__"):
        cell_of(functools.partial(DieEnv, where="__init__"), "processes")
    with pytest.raises(BadInput, match=r"backend; expected auto or loop"):
        cell_of("CartPole-v1", "proceses")


def test_the_quickest_is_chosen_and_the_loop_unless_it_pays() -> None:
    assert quickest({"loop": 1.0, "threads": 0.5, "processes": 0.7}) == "threads"
    assert quickest({"loop": 1.0, "threads": 1.9, "processes": 0.6}) == "processes"
    assert quickest({"loop": 1.0, "threads": 0.95, "processes": 0.92}) == "loop"
    assert quickest({"loop": 1.0}) == "loop"


def test_every_backend_is_measured_with_cells_that_are_closed_again() -> None:
    made: list[tuple[str, int]] = []
    closed: list[str] = []

    class Slow:
        """A cell that only takes its time."""

        def __init__(self, backend: str, slots: int) -> None:
            made.append((backend, slots))
            self.backend, self.slots = backend, slots
            self.spaces = cell_of("CartPole-v1", "loop", 1).spaces

        def reset(self, seeds: Any) -> None:
            assert list(seeds) == list(range(self.slots))

        def step(self, actions: Any, next_seed: Any) -> None:
            assert actions.shape == (self.slots,)
            sum(range(300_000))

        def close(self) -> None:
            closed.append(self.backend)

    seconds = measure(Slow, 3)
    assert made == [("loop", 3), ("threads", 3), ("processes", 3)]
    assert closed == ["loop", "threads", "processes"]
    assert all(0.0 < each < 1.0 for each in seconds.values())


def test_cheap_steps_stay_in_the_loop_without_anything_else_being_tried() -> None:
    made: list[str] = []

    def build(backend: str, slots: int) -> Any:
        made.append(backend)
        return cell_of("CartPole-v1", "loop", slots)

    seconds = measure(build, 2)
    assert made == list(seconds) == ["loop"]
    assert quickest(seconds) == "loop"


def test_with_one_core_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    cell = cell_of("CartPole-v1", "auto")
    assert isinstance(cell, GymnasiumCell)
    cell.close()


def test_an_environment_that_cannot_be_measured_is_stepped_in_the_loop() -> None:
    cell = cell_of(functools.partial(DieEnv, k=0), "auto")
    assert isinstance(cell, GymnasiumCell)
    cell.reset(range(N))
    with pytest.raises(RuntimeError, match="died on purpose in step"):
        cell.step(np.zeros(N, np.int64), next_seed)
    cell.close()
