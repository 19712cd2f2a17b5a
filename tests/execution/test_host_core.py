"""The inside of a host: workers, calls, errors."""

import asyncio
import threading

import pytest

from rlinf_async.errors import BadInput
from rlinf_async.execution.env_watch import EnvStuck, EnvWatch
from rlinf_async.execution.host_core import HostCore
from rlinf_async.execution.worker import Worker
from rlinf_async.hardware import activity
from rlinf_async.tracing.recorder import Recorder


class Adder(Worker):
    def __init__(self, context, *, bonus):
        super().__init__(context)
        self.bonus = bonus

    def add(self, value):
        return value + self.bonus

    async def add_slowly(self, value):
        return await self.context.compute(self.add, value)

    may_end = threading.Event()

    def step_until(self):
        with activity.working() as line:
            line.note(activity.STEP, 3, 5)
            self.may_end.wait(20)

    def fail(self):
        raise KeyError("nothing here")

    def stop_iteration(self):
        raise StopIteration


async def with_core(body):
    async def no_remote(*_):
        raise AssertionError

    core = HostCore("here", recorder=Recorder("test"), remote=no_remote)
    command = {"name": "adder", "reference": f"{__name__}:Adder", "arguments": {"bonus": 2}}
    await core.perform("host", "create", command)
    try:
        return await body(core)
    finally:
        assert await core.close(5.0)


def run(body):
    return asyncio.run(with_core(body))


@pytest.mark.parametrize("method", ["add", "add_slowly"])
def test_plain_and_async_methods_return_their_value(method):
    assert run(lambda core: core.perform("adder", method, {"value": 3})) == 5


def test_what_a_method_raises_reaches_the_caller():
    with pytest.raises(KeyError, match="nothing here"):
        run(lambda core: core.perform("adder", "fail", {}))


def test_an_exception_that_a_future_cannot_hold_reaches_the_caller_too():
    with pytest.raises(RuntimeError, match="StopIteration"):
        run(lambda core: core.perform("adder", "stop_iteration", {}))


def test_an_unknown_worker_or_method_names_the_nearest_one():
    with pytest.raises(BadInput, match="did you mean 'adder'"):
        run(lambda core: core.perform("addr", "add", {"value": 1}))
    with pytest.raises(BadInput, match="did you mean 'add'"):
        run(lambda core: core.perform("adder", "ad", {"value": 1}))


def test_private_methods_cannot_be_called():
    with pytest.raises(BadInput, match="_timed"):
        run(lambda core: core.perform("adder", "_timed", {}))


def test_the_wall_time_of_a_worker_is_split_into_working_and_waiting():
    async def body(core):
        for value in range(20):
            await core.perform("adder", "add", {"value": value})
        return core.recorder.stage_totals()["adder@here"]

    totals = run(body)
    assert totals["working"] > 0.0
    assert totals["input"] > 0.0


def test_time_in_a_sibling_counts_as_the_sibling_s_work():
    async def body(core):
        command = {"name": "user", "reference": f"{__name__}:Adder", "arguments": {"bonus": 0}}
        await core.perform("host", "create", command)
        before = core.recorder.stage_totals()
        core.lent("user", "adder", 1_000_000_000)
        after = core.recorder.stage_totals()
        return {
            (stage, kind): round(after[stage][kind] - before[stage][kind])
            for stage in ("user@here", "adder@here")
            for kind in ("working", "input")
        }

    assert run(body) == {
        ("user@here", "working"): -1,
        ("user@here", "input"): 1,
        ("adder@here", "working"): 1,
        ("adder@here", "input"): -1,
    }


def test_a_call_in_which_an_environment_is_stuck_ends_with_what_it_was_doing():
    async def body(core):
        board = activity.current()
        core._watch = EnvWatch(board, limit_s=0.001, first_s=0.001)
        call = asyncio.ensure_future(core.perform("adder", "step_until", {}))  # noqa: TID251
        while not call.done():
            core.look_after_environments()
            await asyncio.sleep(0.002)
        Adder.may_end.set()
        with pytest.raises(EnvStuck, match="step 5 of the episode of slot 3") as it:
            await call
        assert "in step_until" in it.value.__notes__[0]
        assert await core.perform("adder", "add", {"value": 1}) == 3

    run(body)
