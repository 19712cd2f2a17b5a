import asyncio

import pytest

from rlinf_async.communication.deadlines import deadline
from rlinf_async.errors import PeerTimeout


def test_the_error_says_how_long_and_what_for():
    async def wait():
        async with deadline(0.01, waiting_for="host h0 to greet"):
            await asyncio.Event().wait()

    with pytest.raises(PeerTimeout, match=r"gave up after 0\.01 s waiting for host h0 to greet"):
        asyncio.run(wait())


def test_a_timeout_of_the_body_itself_passes_through():
    async def wait():
        async with deadline(5, waiting_for="nothing"):
            raise TimeoutError("the body's own")

    with pytest.raises(TimeoutError, match="the body's own"):
        asyncio.run(wait())


def test_an_inner_deadline_does_not_end_the_outer_one():
    async def wait():
        async with deadline(5, waiting_for="the outer"):
            with pytest.raises(PeerTimeout, match="the inner"):
                async with deadline(0.01, waiting_for="the inner"):
                    await asyncio.Event().wait()
            return "went on"

    assert asyncio.run(wait()) == "went on"


def test_cancellation_is_no_timeout():
    async def wait(started):
        async with deadline(5, waiting_for="nothing"):
            started.set()
            await asyncio.Event().wait()

    async def main():
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(wait(started))
            await started.wait()
            task.cancel()
        return task.cancelled()

    assert asyncio.run(main())
