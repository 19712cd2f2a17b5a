"""The thread that computes: whether one goes on decides how a process may end."""

from __future__ import annotations

import asyncio
import threading

from rlinf_async.execution.work_thread import WorkThread, any_alive


def test_a_thread_that_was_stopped_but_is_stuck_still_counts():
    entered, leave = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        leave.wait(30)

    async def scenario() -> WorkThread:
        thread = WorkThread("work-test", asyncio.get_running_loop())
        async with asyncio.TaskGroup() as group:
            job = group.create_task(thread.run(stuck))
            await asyncio.to_thread(entered.wait, 30)
            thread.stop()
            job.cancel()
        return thread

    thread = asyncio.run(scenario())
    assert thread.alive
    assert any_alive()
    leave.set()
    thread._thread.join(30)
    assert not thread.alive
