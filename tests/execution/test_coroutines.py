"""Where tasks wait, as viewers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rlinf_async.execution.coroutines import task_rows


async def waits_for(event: asyncio.Event) -> None:
    await event.wait()


async def stage(event: asyncio.Event) -> None:
    await waits_for(event)


async def items(event: asyncio.Event) -> AsyncIterator[int]:
    await event.wait()
    yield 1


async def reads(event: asyncio.Event) -> None:
    async for _ in items(event):
        pass


def test_tasks_are_told_with_the_chain_of_what_they_await():
    async def body() -> None:
        event = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stage(event), name=f"cell-{n}") for n in (10, 2)]
            tasks.append(group.create_task(reads(event), name="reader"))
            await asyncio.sleep(0)
            reader, cells = task_rows(tasks)
            event.set()
        assert (reader["name"], reader["count"]) == ("reader", 1)
        assert reader["where"][0].startswith("reads (test_coroutines.py:")
        assert (cells["name"], cells["count"]) == ("cell-2", 2)
        functions = [place.partition(" ")[0] for place in cells["where"]]
        assert functions == ["stage", "waits_for"]

    asyncio.run(body())


def test_the_running_task_is_told_too_and_chains_are_bounded():
    async def body() -> None:
        event = asyncio.Event()

        async def deep(level: int) -> None:
            await (deep(level - 1) if level else event.wait())

        async with asyncio.TaskGroup() as group:
            for level in range(0, 90, 10):
                group.create_task(deep(level), name=f"deep-{level}")
            await asyncio.sleep(0)
            rows = task_rows(asyncio.all_tasks())
            event.set()
        # Tasks of the same innermost eight are in one place: deep-0 is less deep than that.
        assert len(rows) == 3
        assert (rows[-1]["name"], rows[-1]["count"], len(rows[-1]["where"])) == ("deep-10", 8, 7)
        assert ".deep (test_coroutines.py:" in rows[-1]["where"][-1]
        (own,) = [row for row in rows if not row["name"].startswith("deep")]
        assert own["where"][-1].startswith("test_the_running_task")

    asyncio.run(body())
