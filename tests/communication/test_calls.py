import asyncio
import time

import pytest

from rlinf_async.communication.calls import Caller, TooManyCalls
from rlinf_async.communication.messages import Failure, Note, Reply
from rlinf_async.errors import PeerGone, PeerTimeout, WorkerFailed


class FakeLink:
    def __init__(self):
        self.sent = []

    def send(self, peer, message, frames=()):
        if peer == "nobody":
            raise PeerGone("nobody is not connected")
        self.sent.append((peer, message))


def with_caller(scenario, **options):
    async def main():
        link = FakeLink()
        caller = Caller(link, **options)
        async with asyncio.timeout(10):
            result = await scenario(link, caller)
        assert caller.pending_calls("h0") == ()
        return result

    return asyncio.run(main())


def started(group, caller, **options):
    """A call in a task of its own, whose result is what the call returned or raised."""
    options = {"deadline_s": 5, **options}
    return group.create_task(outcome(caller.call("h0", "render.0", "collect", {}, **options)))


async def outcome(call):
    try:
        return await call
    except Exception as error:
        return error


def test_answers_reach_their_own_call_in_any_order():
    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            tasks = [started(group, caller) for _ in range(3)]
            await asyncio.sleep(0)
            ids = [call.call_id for _, call in link.sent]
            for call_id in reversed(ids):
                frames = [memoryview(b"frame")]
                assert caller.complete("h0", Reply(call_id=call_id, value=call_id), frames)
        assert [task.result()[0] for task in tasks] == ids
        assert bytes(tasks[0].result()[1][0]) == b"frame"

    with_caller(scenario)


def test_other_messages_are_not_taken():
    async def scenario(link, caller):
        assert not caller.complete("h0", Note(topic="n", value=1), [])

    with_caller(scenario)


def test_a_failure_raises_with_the_remote_traceback():
    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            task = started(group, caller)
            await asyncio.sleep(0)
            failure = Failure(call_id=1, kind="KeyError", message="'x'", traceback="line 7")
            caller.complete("h0", failure, [])
        error = task.result()
        assert isinstance(error, WorkerFailed)
        assert "render.0" in str(error)
        assert "collect: KeyError: 'x'" in str(error)
        assert "line 7" in error.__notes__[0]

    with_caller(scenario)


def test_the_builder_decides_which_error_a_failure_becomes():
    def build(peer, call, failure):
        return LookupError(f"{peer} {call.worker} {failure.kind}")

    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            task = started(group, caller)
            await asyncio.sleep(0)
            caller.complete("h0", Failure(call_id=1, kind="K", message="m", traceback=""), [])
        assert isinstance(task.result(), LookupError)
        assert str(task.result()) == "h0 render.0 K"

    with_caller(scenario, build_error=build)


def test_a_timeout_says_who_doing_what_and_how_long():
    async def scenario(link, caller):
        expected = r"gave up after 0\.01 s waiting for h0 to run render\.0\.collect \(batch 4\)"
        with pytest.raises(PeerTimeout, match=expected):
            await caller.call(
                "h0", "render.0", "collect", {}, deadline_s=0.01, waiting_for="batch 4"
            )

    with_caller(scenario)


def test_a_late_reply_is_ignored_and_counted():
    async def scenario(link, caller):
        with pytest.raises(PeerTimeout):
            await caller.call("h0", "w", "m", {}, deadline_s=0.01)
        assert caller.complete("h0", Reply(call_id=1, value=1), [])
        assert caller.late_replies == 1

    with_caller(scenario)


def test_a_reply_of_another_peer_completes_nothing():
    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            task = started(group, caller)
            await asyncio.sleep(0)
            caller.complete("h1", Reply(call_id=1, value="forged"), [])
            caller.complete("h0", Reply(call_id=1, value="true"), [])
        assert task.result()[0] == "true"
        assert caller.late_replies == 1

    with_caller(scenario)


def test_a_lost_peer_fails_all_its_calls_and_no_others():
    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            lost = [started(group, caller) for _ in range(3)]
            other = group.create_task(caller.call("h1", "w", "m", {}, deadline_s=5))
            await asyncio.sleep(0)
            assert [call.method for call in caller.pending_calls("h0")] == ["collect"] * 3
            assert caller.fail_peer("h0", PeerGone("h0 was killed")) == 3
            caller.complete("h1", Reply(call_id=4, value=1), [])
        assert [str(task.result()) for task in lost] == ["h0 was killed"] * 3
        assert other.result()[0] == 1

    with_caller(scenario)


def test_a_cancelled_call_leaves_nothing_pending():
    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            task = started(group, caller)
            await asyncio.sleep(0)
            task.cancel()
        caller.complete("h0", Reply(call_id=1, value=1), [])
        assert caller.late_replies == 1

    with_caller(scenario)


def test_a_call_to_nobody_fails_at_once():
    async def scenario(link, caller):
        with pytest.raises(PeerGone):
            await caller.call("nobody", "w", "m", {}, deadline_s=5)
        assert caller.pending_calls("nobody") == ()

    with_caller(scenario)


def test_outstanding_calls_are_bounded_per_peer():
    async def scenario(link, caller):
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                started(group, caller)
            await asyncio.sleep(0)
            with pytest.raises(TooManyCalls, match="2 calls to h0 are unanswered"):
                await caller.call("h0", "w", "m", {}, deadline_s=5)
            for call_id in (1, 2):
                caller.complete("h0", Reply(call_id=call_id, value=None), [])

    with_caller(scenario, max_pending=2)


@pytest.mark.process
def test_a_silent_process_times_out_and_a_failing_one_answers(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            caller = Caller(desk.router)
            desk.handlers.append(caller.complete)
            peers(address, "h0", "echo")
            peers(address, "h1", "silent")
            await desk.greeted("h0", "h1")
            value, frames = await caller.call(
                "h0", "w", "m", {"a": 1}, frames=[b"x"], deadline_s=10
            )
            assert (value, bytes(frames[0])) == ({"a": 1}, b"x")
            with pytest.raises(WorkerFailed, match="ValueError: bad"):
                await caller.call("h0", "w", "fail", {}, deadline_s=10)
            with pytest.raises(PeerTimeout, match=r"h1 to run w\.m"):
                await caller.call("h1", "w", "m", {}, deadline_s=0.05)

    run(main())


def test_a_deadline_counts_from_the_last_progress():
    async def scenario(link, caller):
        began_s = time.perf_counter()
        progress = iter([began_s + 0.2, began_s + 0.25])
        newest_s = 0.0

        def progress_s():
            nonlocal newest_s
            newest_s = next(progress, newest_s)
            return newest_s

        error = await outcome(
            caller.call("h0", "w", "m", {}, deadline_s=0.1, progress_s=progress_s)
        )
        assert isinstance(error, PeerTimeout)
        assert 0.35 <= time.perf_counter() - began_s < 5.0

    with_caller(scenario)


def test_progress_of_long_ago_prolongs_nothing():
    async def scenario(link, caller):
        began_s = time.perf_counter()
        error = await outcome(
            caller.call("h0", "w", "m", {}, deadline_s=0.05, progress_s=lambda: began_s - 1.0)
        )
        assert "gave up after 0.05 s" in str(error)
        assert time.perf_counter() - began_s < 5.0

    with_caller(scenario)
