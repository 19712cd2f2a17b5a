"""The other end of a link, in a process of its own:  python peer.py ADDRESS IDENTITY MODE LOOP

echo    answers every call with its arguments and frames; method "fail" raises
slow    sleeps in the reader, prints the notes' values as a JSON line when the last one has come
silent  never answers a call
talker  sends 200 notes, drains, leaves
A note with the topic "leave" ends it.
"""

import asyncio
import json
import sys
import time

import uvloop

from rlinf_async.communication.link import Dealer
from rlinf_async.communication.messages import Call, Failure, Hello, Note, Reply


class Peer:
    def __init__(self, address, identity, mode):
        self.mode = mode
        self.values = []
        self.leave = asyncio.Event()
        self.dealer = Dealer(address, identity=identity, receive=self.receive)

    def receive(self, sender, message, frames):
        if isinstance(message, Call) and self.mode != "silent":
            self.answer(sender, message, frames)
        elif isinstance(message, Note):
            self.note(message)

    def answer(self, sender, call, frames):
        if call.method == "fail":
            error = ValueError("bad \udc80 text")
            self.dealer.send(sender, Failure.of(call.call_id, error))
        else:
            self.dealer.send(sender, Reply(call_id=call.call_id, value=call.arguments), frames)

    def note(self, message):
        if message.topic == "leave":
            self.leave.set()
        if self.mode == "slow":
            time.sleep(0.0002)
            self.values.append(message.value["number"])
            if message.value["last"]:
                print(json.dumps(self.values), flush=True)
                self.leave.set()

    async def run(self, identity):
        await self.dealer.open(Hello.of_this_process(identity), deadline_s=10)
        if self.mode == "talker":
            for number in range(200):
                self.dealer.send("controller", Note(topic="n", value=number))
            await self.dealer.drain("controller", deadline_s=10)
        else:
            await self.leave.wait()
        self.dealer.close()


async def main(address, identity, mode):
    await Peer(address, identity, mode).run(identity)


if __name__ == "__main__":
    *arguments, loop = sys.argv[1:]
    (uvloop.run if loop == "uvloop" else asyncio.run)(main(*arguments))
