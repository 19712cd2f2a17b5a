import asyncio
import json
import os
import signal

import pytest
import zmq

from rlinf_async.communication.link import Dealer, Router
from rlinf_async.communication.messages import Call, Hello, Note, Reply, Welcome, encode
from rlinf_async.errors import PeerGone, PeerTimeout, ProtocolError

pytestmark = pytest.mark.process


def test_calls_and_frames_come_back_from_another_process(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            peers(address, "h0", "echo")
            await desk.greeted("h0")
            frame = bytes(range(256)) * 1000
            call = Call(call_id=5, worker="w", method="m", arguments={"x": [1, 2.5, None]})
            desk.router.send("h0", call, [frame, b"", b"small"])
            await desk.until(lambda: len(desk.inbox) == 2)
            return desk.inbox

    (_, hello, _), (peer, reply, frames) = run(main())
    assert hello.host == "h0"
    assert hello.pid != os.getpid()
    assert (peer, reply) == ("h0", Reply(call_id=5, value={"x": [1, 2.5, None]}))
    assert [bytes(frame) for frame in frames] == [bytes(range(256)) * 1000, b"", b"small"]


def test_a_slow_reader_gets_all_messages_in_order_before_the_close(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            process = peers(address, "slow", "slow")
            await desk.greeted("slow")
            for number in range(1000):
                value = {"number": number, "last": number == 999}
                desk.router.send("slow", Note(topic="n", value=value))
            await desk.router.drain("slow", deadline_s=20)
            return process

    output, _ = run(main()).communicate(timeout=20)
    assert json.loads(output) == list(range(1000))


def test_a_peer_that_drains_and_leaves_loses_nothing(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            peers(address, "talker", "talker")
            await desk.until(lambda: len(desk.inbox) == 201)
            return [message.value for _, message, _ in desk.inbox[1:]]

    assert run(main()) == list(range(200))


def test_frames_may_change_after_the_send(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            peers(address, "h0", "echo")
            await desk.greeted("h0")
            frame = bytearray(b"a" * 1_000_000)
            call = Call(call_id=1, worker="w", method="m", arguments={})
            desk.router.send("h0", call, [frame])
            frame[:] = b"b" * 1_000_000
            await desk.until(lambda: len(desk.inbox) == 2)
            return bytes(desk.inbox[1][2][0])

    assert run(main()) == b"a" * 1_000_000


def test_a_refused_frame_does_not_spoil_the_next_message(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            peers(address, "h0", "echo")
            await desk.greeted("h0")
            call = Call(call_id=1, worker="w", method="m", arguments={})
            with pytest.raises(ValueError, match="not contiguous"):
                desk.router.send("h0", call, [b"good", memoryview(bytes(10))[::2]])
            with pytest.raises(ProtocolError, match="cannot be written"):
                desk.router.send("h0", Note(topic="n", value=object()))
            desk.router.send("h0", call, [b"good"])
            await desk.until(lambda: len(desk.inbox) == 2)
            await desk.router.drain("h0", deadline_s=10)
            return desk.inbox[1]

    _, reply, frames = run(main())
    assert reply == Reply(call_id=1, value={})
    assert [bytes(frame) for frame in frames] == [b"good"]


def test_what_a_peer_sends_after_it_has_drained_is_no_loss(folder, run):
    address = folder.socket_address("controller")

    async def main():
        router = Router(address, receive=lambda *_: None)
        dealer = Dealer(address, identity="h0", receive=lambda *_: None)
        try:
            await dealer.open(Hello.of_this_process("h0"), deadline_s=10)
            async with asyncio.TaskGroup() as group:
                drain = group.create_task(router.drain("h0", deadline_s=10))
                # These surround the dealer's answer, which comes at some point among them.
                while not drain.done():
                    dealer.send("controller", Note(topic="beat", value=None))
                    await asyncio.sleep(0)
        finally:
            router.close()
            dealer.close()

    run(main())


def test_a_message_to_nobody_is_an_error(folder, run, open_desk):
    async def main():
        with open_desk(folder.socket_address("controller")) as desk:
            with pytest.raises(PeerGone, match="h7 is not connected"):
                desk.router.send("h7", Note(topic="n", value=1))
            with pytest.raises(PeerGone, match="h7 is not connected"):
                await desk.router.drain("h7", deadline_s=1)

    run(main())


def test_a_killed_peer_becomes_unroutable(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def send_until_gone(desk):
        while True:
            desk.router.send("h0", Note(topic="n", value=1))
            await asyncio.sleep(0)

    async def main():
        with open_desk(address) as desk:
            process = peers(address, "h0", "echo")
            await desk.greeted("h0")
            process.kill()
            async with asyncio.timeout(5):
                with pytest.raises(PeerGone, match="h0 is not connected"):
                    await send_until_gone(desk)
            desk.router.forget("h0")
            assert desk.router.peers == ()

    run(main())


def test_draining_a_stopped_peer_gives_up_and_says_so(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            process = peers(address, "h0", "echo")
            await desk.greeted("h0")
            os.kill(process.pid, signal.SIGSTOP)
            what = r"gave up after 0\.05 s waiting for h0 to receive the last of 1 messages"
            with pytest.raises(PeerTimeout, match=what):
                await desk.router.drain("h0", deadline_s=0.05)

    run(main())


def test_forgetting_a_peer_ends_its_drain(folder, run, peers, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk:
            process = peers(address, "h0", "echo")
            await desk.greeted("h0")
            os.kill(process.pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_soon(desk.router.forget, "h0")
            with pytest.raises(PeerGone, match="has ended"):
                await desk.router.drain("h0", deadline_s=10)

    run(main())


def test_nobody_speaks_before_the_hello(folder, run, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk, _raw_dealer(address) as raw:
            raw.send(encode(Note(topic="n", value=1)))
            await desk.until(lambda: desk.errors)
            return desk.errors, desk.inbox

    [(peer, error)], inbox = run(main())
    assert peer == "raw"
    assert isinstance(error, ProtocolError)
    assert "before its hello" in str(error)
    assert inbox == []


def test_one_unreadable_message_does_not_silence_the_link(folder, run, open_desk):
    address = folder.socket_address("controller")

    async def main():
        with open_desk(address) as desk, _raw_dealer(address) as raw:
            raw.send(encode(Hello.of_this_process("raw")))
            raw.send(b"\x80\x04pickle")
            raw.send(encode(Note(topic="after", value=1)))
            await desk.until(lambda: len(desk.inbox) == 2)
            return desk.errors, desk.inbox[1][1].topic

    [(_, error)], topic = run(main())
    assert isinstance(error, ProtocolError)
    assert topic == "after"


def test_a_failing_handler_does_not_silence_the_link(folder, run, open_desk):
    address = folder.socket_address("controller")

    def fail(peer, message, frames):
        if getattr(message, "topic", "") == "bad":
            raise ValueError("handler")

    async def main():
        with open_desk(address) as desk, _raw_dealer(address) as raw:
            desk.handlers.append(fail)
            raw.send(encode(Hello.of_this_process("raw")))
            for topic in ("bad", "good"):
                raw.send(encode(Note(topic=topic, value=1)))
            await desk.until(lambda: len(desk.inbox) == 2)
            return desk.errors

    [(_, error)] = run(main())
    assert isinstance(error, ValueError)


def test_a_dealer_of_another_protocol_is_refused_at_once(folder, run, open_desk):
    address = folder.socket_address("controller")
    hello = Hello(protocol=99, host="old", pid=1, python="3.11", packages={})

    async def main():
        with open_desk(address) as desk:
            dealer = Dealer(address, identity="old", receive=lambda *_: None)
            try:
                with pytest.raises(ProtocolError, match="same version"):
                    await dealer.open(hello, deadline_s=10)
            finally:
                dealer.close()
            return desk.errors, desk.router.peers

    errors, known = run(main())
    assert "protocol 99" in str(errors[0][1])
    assert known == ()


def test_opening_a_link_to_nobody_gives_up_and_says_so(folder, run):
    async def main():
        address = folder.socket_address("controller")
        dealer = Dealer(address, identity="h0", receive=lambda *_: None)
        try:
            with pytest.raises(PeerTimeout, match="waiting for controller to welcome h0"):
                await dealer.open(Hello.of_this_process("h0"), deadline_s=0.05)
        finally:
            dealer.close()

    run(main())


def test_a_dealer_may_connect_before_its_router_listens(folder, run, open_desk):
    address = folder.socket_address("late")

    async def main():
        dealer = Dealer(address, identity="early", receive=lambda *_: None, peer="late")
        try:
            async with asyncio.TaskGroup() as group:
                hello = Hello.of_this_process("early")
                opening = group.create_task(dealer.open(hello, deadline_s=10))
                await asyncio.sleep(0)
                with open_desk(address) as desk:
                    await desk.greeted("early")
                    await opening
        finally:
            dealer.close()

    run(main())


def test_both_ends_in_one_loop_exchange_bursts_both_ways(folder, run):
    address = folder.socket_address("controller")
    count = 3000

    async def main():
        here, there, done = [], [], asyncio.Event()

        def collect(inbox):
            def receive(peer, message, frames):
                if isinstance(message, Note):
                    inbox.append(message.value)
                if len(here) == len(there) == count:
                    done.set()

            return receive

        router = Router(address, receive=collect(here))
        dealer = Dealer(address, identity="h0", receive=collect(there))
        try:
            await dealer.open(Hello.of_this_process("h0"), deadline_s=10)
            for number in range(count):
                router.send("h0", Note(topic="n", value=number))
                dealer.send("controller", Note(topic="n", value=number))
                if number % 97 == 0:
                    await asyncio.sleep(0)
            await done.wait()
            await router.drain("h0", deadline_s=10)
            await dealer.drain("controller", deadline_s=10)
        finally:
            router.close()
            dealer.close()
        return here, there

    here, there = run(main())
    assert here == there == list(range(count))


def test_closing_twice_is_fine_and_leaves_no_descriptor(folder, run):
    async def main():
        # The shared context keeps descriptors of its own from the first socket on.
        for turn in range(4):
            if turn == 1:
                before = len(os.listdir("/proc/self/fd"))
            router = Router(folder.socket_address(f"s{turn}"), receive=lambda *_: None)
            router.close()
            router.close()
            with pytest.raises(PeerGone):
                router.send("h0", Welcome())
        return before

    # ZeroMQ's own thread closes a socket's descriptors a moment after `close` returns.
    before = run(main())
    _until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def _until(condition):
    for _ in range(2000):
        if condition():
            return
        signal.sigtimedwait([], 0.001)
    raise AssertionError("the condition never held")


def _raw_dealer(address):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.setsockopt(zmq.IDENTITY, b"raw")
    socket.connect(address)
    return socket
