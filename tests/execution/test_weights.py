"""The ring of versions: rows are reused only when nobody needs their version."""

import asyncio

import pytest

from rlinf_async.communication.fields import Field
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import EngineError
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.weights import WeightRing, ring_rows
from rlinf_async.scheduling.ledger import Ledger
from rlinf_async.tracing.waits import StageClock


class Receiver:
    """Acknowledges what it is told, or something else."""

    def __init__(self, name, answer=None):
        self.name, self.answer, self.heard = name, answer, []

    async def call(self, worker, method, arguments, *, deadline_s):
        self.heard.append((method, arguments["version"], arguments["row"]))
        return arguments["version"] if self.answer is None else self.answer


def ring_of(receivers, *, cells=1, max_lag=0, iterations=9):
    admission = Admission(Ledger(cells=cells, iterations=iterations, max_lag=max_lag))
    fields = [Field(name="parameters", shape=(4,), dtype="float32")]
    pool = RowPool.create("weights", fields, ring_rows(max_lag))
    return WeightRing(pool, admission, receivers, 5.0), admission, pool


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_every_receiver_hears_every_version_exactly_once(max_lag):
    receivers = [Receiver("a"), Receiver("b")]

    async def scenario():
        ring, admission, pool = ring_of(receivers, max_lag=max_lag, iterations=6)
        clock = StageClock("train")
        await ring.publish(0, ring.first_row())
        for batch in range(6):
            while (ticket := admission.admit(0)) is not None:
                admission.collected(ticket)
            row = await ring.free_row(clock)
            admission.trained(batch)
            await ring.publish(batch + 1, row)
            admission.published(batch + 1)
        assert ring.sent_count == 7 * 2
        pool.close()

    asyncio.run(scenario())
    for receiver in receivers:
        assert [version for _, version, _ in receiver.heard] == list(range(7))


def test_a_new_version_waits_while_every_row_is_needed():
    async def scenario():
        ring, admission, pool = ring_of([], max_lag=0)
        clock = StageClock("train")
        await ring.publish(0, ring.first_row())
        ticket = admission.admit(0)
        second = await ring.free_row(clock)
        waiting = asyncio.ensure_future(ring.free_row(clock))  # noqa: TID251 - one waiter of a test
        await asyncio.sleep(0)
        assert not waiting.done()
        admission.collected(ticket)
        admission.trained(0)
        await ring.publish(1, second)
        admission.published(1)
        assert await asyncio.wait_for(waiting, 5) != second  # noqa: TID251
        assert clock.totals_s()["weights"] > 0.0
        pool.close()

    asyncio.run(scenario())


def test_an_acknowledgement_of_another_version_is_an_error():
    async def scenario():
        ring, _, pool = ring_of([Receiver("deaf", answer=-1)])
        try:
            await ring.publish(0, ring.first_row())
        finally:
            pool.close()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(scenario())
    assert caught.group_contains(EngineError, match="deaf acknowledged version -1 instead of 0")
