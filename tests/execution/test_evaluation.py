"""Evaluations during training see the live version and change nothing."""

import asyncio
import contextlib
import dataclasses

import pytest

from rlinf_async.communication.fields import Field
from rlinf_async.communication.pool import RowPool
from rlinf_async.errors import BadInput
from rlinf_async.execution.admission import Admission
from rlinf_async.execution.checkpoint import read_checkpoint
from rlinf_async.execution.evaluation import EvaluationPlan, check_spaces, plan_of
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces, chunked
from rlinf_async.execution.weights import WeightRing
from rlinf_async.scheduling.ledger import Ledger
from rlinf_async.tracing.recorder import Recorder

SERIAL = ("--mode", "serial", "--max-lag", "1")
COLLOCATED = ("--mode", "collocated", "--hosts", "1", "--max-lag", "1")


def trained(launch, *options: str) -> tuple[bytes, list[list[str]]]:
    """The bits of the parameters and statistics, and the lines that tell of evaluations."""
    run = launch("evaluating.py", *options)
    assert run.finish() == 0, run.stderr
    found = read_checkpoint(run.run_dir / "checkpoint")
    bits = [found.parameters.tobytes()]
    bits += [found.statistics[name].tobytes() for name in sorted(found.statistics)]
    return b"".join(bits), [line.split() for line in run.out if line.startswith("scored")]


@pytest.mark.process
def test_training_is_the_same_bit_by_bit_with_and_without_evaluation(launch):
    never, told = trained(launch, *SERIAL)
    assert not told
    between, told = trained(launch, *SERIAL, "--evaluate", "between")
    assert between == never
    assert [line[1] for line in told] == ["1", "2", "3", "4"]
    beside, told = trained(launch, *COLLOCATED, "--evaluate", "beside")
    assert beside == never
    versions = [int(line[1]) for line in told]
    assert len(versions) == 4
    assert versions == sorted(versions)
    assert all(line[2:] == ["7.0", "3"] for line in told)


@pytest.mark.process
def test_an_evaluation_before_the_first_batch_scores_version_0(launch):
    _, told = trained(launch, *COLLOCATED, "--evaluate", "early")
    assert told == [["scored", "0", "7.0", "3"]]


@pytest.mark.process
def test_an_evaluation_during_training_can_be_filmed(launch):
    run = launch("evaluating.py", *COLLOCATED, "--evaluate", "videos")
    assert run.finish() == 0, run.stderr
    names = sorted(path.name for path in (run.run_dir / "videos").iterdir())
    assert names == ["episode-0000.mp4", "episode-0001.mp4", "episode-0002.mp4"]


def ring_of_two() -> tuple[WeightRing, RowPool, Admission]:
    pool = RowPool.create("weights", [Field(name="x", shape=(1,), dtype="float32")], 2)
    admission = Admission(Ledger(cells=1, iterations=9, max_lag=0, lag="exact"))
    return WeightRing(pool, admission, (), 1.0), pool, admission


def advance(admission: Admission) -> None:
    """One batch is collected, trained and published."""
    ticket = admission.admit(0)
    assert ticket is not None
    admission.collected(ticket)
    admission.trained(ticket.batch)


async def publish(ring: WeightRing, admission: Admission, version: int, row: int) -> None:
    await ring.publish(version, row)
    admission.published(version)


def test_a_version_that_is_kept_is_not_overwritten_until_it_is_let_go():
    async def scenario() -> None:
        ring, pool, admission = ring_of_two()
        clock = Recorder("test").stage("train")
        first = ring.first_row()
        await ring.publish(0, first)
        with contextlib.ExitStack() as kept:
            assert kept.enter_context(ring.keep(0)) == first
            second = await ring.free_row(clock)
            advance(admission)
            await publish(ring, admission, 1, second)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(ring.free_row(clock))
                await asyncio.sleep(0)
                assert not waiting.done()
                kept.close()
        assert waiting.result() == first
        pool.close()

    asyncio.run(scenario())


SPACES = Spaces(
    observation=(ArraySpec(name="state", shape=(3,), dtype="float32"),),
    action=ActionSpec(kind="continuous", shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,)),
)


def test_spaces_of_a_chunk_fit_those_of_its_steps():
    chunk = dataclasses.replace(SPACES, action=chunked(SPACES.action, 4), chunk=4)
    check_spaces(chunk, SPACES, "E")
    check_spaces(chunk, chunk, "E")
    with pytest.raises(BadInput, match="its actions are not those of the policy"):
        check_spaces(SPACES, dataclasses.replace(SPACES, action=chunk.action), "E")
    other = dataclasses.replace(SPACES, observation=())
    with pytest.raises(BadInput, match=r"observations.*expected state float32\[3\]"):
        check_spaces(SPACES, other, "E")


def test_a_plan_without_episodes_is_refused():
    with pytest.raises(BadInput, match="at least 1; got 0"):
        EvaluationPlan(episodes=0, seed=0)


def test_an_unknown_argument_of_an_evaluation_is_named():
    with pytest.raises(
        BadInput, match=r"pipe\.evaluate: no argument 'sample'; did you mean 'sampled'"
    ):
        plan_of("pipe.evaluate", episodes=1, seed=0, sample=True)
    plan = plan_of("pipe.evaluate", episodes=1, seed=0, sampled=True, videos="v")
    assert plan.sampled
    assert plan.videos is not None
    assert plan.videos.is_absolute()
    assert plan.record is None
