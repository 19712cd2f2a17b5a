"""Where the time of a central policy goes while segments of several cells interleave."""

from rlinf_async.tracing.waits import StageClock, Wait
from rlinf_async.workers.central_clock import CentralClock
from tests.fixtures.clock import FakeClock


def test_it_works_while_any_cell_is_computed_for_and_else_waits_for_render_hosts():
    time = FakeClock()
    clock = StageClock("rollout@policy", time.now_ns)
    clock.waiting(Wait.INPUT, on="controller").__enter__()
    central = CentralClock(clock)
    time.tick_ns(1)
    with central.segment():
        time.tick_ns(10)
        with central.segment(), central.computing():
            time.tick_ns(100)
            with central.computing():
                time.tick_ns(1_000)
            time.tick_ns(10_000)
        time.tick_ns(100_000)
    time.tick_ns(1_000_000)
    spent_ns = {key: round(spent * 1e9) for key, spent in clock.totals_on_s().items()}
    assert spent_ns.pop(("working", ""), 0) == 11_100
    assert spent_ns == {("input", "controller"): 1_000_001, ("input", "render"): 100_010}
