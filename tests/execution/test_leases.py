"""Phase leases for coroutines: alternation, cancellation, attribution."""

from __future__ import annotations

import asyncio

import pytest

from rlinf_async.execution.leases import Leases
from rlinf_async.scheduling.leases import LeaseTable
from rlinf_async.tracing.waits import StageClock
from tests.fixtures.clock import FakeClock, settle
from tests.fixtures.loops import in_loop


@in_loop
async def test_phases_that_share_devices_never_run_together():
    leases = Leases(LeaseTable.alternating("rollout", "train"))
    inside: list[str] = []
    turns: list[str] = []

    async def work(phase: str) -> None:
        for _ in range(5):
            async with leases.hold(phase):
                inside.append(phase)
                turns.append(phase)
                await settle(3)
                assert set(inside) == {phase}
                inside.remove(phase)

    async with asyncio.TaskGroup() as group:
        for phase in ("rollout", "rollout", "train"):
            group.create_task(work(phase))
    assert (turns.count("rollout"), turns.count("train")) == (10, 5)
    assert "train" in turns[:4]  # it has its turn long before rollout is done
    assert not leases.table.held


@in_loop
async def test_the_wait_is_charged_and_names_the_phase_in_the_way():
    time = FakeClock()
    clock = StageClock("train", time.now_ns)
    leases = Leases(LeaseTable.alternating("rollout", "train"))

    async def train() -> None:
        async with leases.hold("train", clock=clock):
            await time.sleep_s(2.0)

    async with asyncio.TaskGroup() as group:
        async with leases.hold("rollout"):
            group.create_task(train())
            await time.advance_s(3.0)
        await time.advance_s(2.0)
    assert clock.totals_on_s() == {("devices", "rollout"): 3.0, ("working", ""): 2.0}


@pytest.mark.parametrize("woken", [False, True])
@in_loop
async def test_a_cancelled_wait_leaves_nothing_behind(woken):
    leases = Leases(LeaseTable.alternating("rollout", "train"))
    reached: list[str] = []

    async def use(phase: str) -> None:
        async with leases.hold(phase):
            reached.append(phase)

    async with asyncio.TaskGroup() as group:
        async with leases.hold("rollout"):
            waiting = group.create_task(use("train"))
            await settle()
            group.create_task(use("rollout"))
            await settle()
            if not woken:
                waiting.cancel()
        waiting.cancel()  # now the lease is granted, but the task has not run
    assert reached == ["rollout"]
    assert not leases.table.held
    assert not leases.table.waiting


@in_loop
async def test_an_exception_inside_gives_the_lease_back():
    leases = Leases(LeaseTable.alternating("rollout", "train"))
    with pytest.raises(ZeroDivisionError):
        async with leases.hold("train"):
            _ = 1 / 0
    async with leases.hold("rollout"):
        pass
