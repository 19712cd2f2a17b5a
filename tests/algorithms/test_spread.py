"""Shards of a gradient from other processes: the same bits, whoever computes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.algorithms import Adam, PPOLoss, gae
from rlinf_async.algorithms.normalizers import Statistics
from rlinf_async.algorithms.spread import Spread, shards_of
from rlinf_async.algorithms.torch_learner import TorchLearner
from rlinf_async.communication.lockstep import Leader
from rlinf_async.errors import EngineError, PeerGone
from rlinf_async.execution.references import describe
from rlinf_async.models import GaussianActorCritic
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.gradient import GradientWorker
from tests.fixtures.batches import random_batch, vector_spaces

SPACES = vector_spaces(widths={"state": 3})
SETTINGS = {"epochs": 2, "minibatch": 7, "shards": 4}
ITERATIONS = 3
LIMIT_S = 20.0


def policy() -> GaussianActorCritic:
    return GaussianActorCritic(SPACES, hidden=(8,))


def records(loss: PPOLoss) -> dict:
    return {"loss": loss, "advantages": gae(0.9, 0.8), "optimizer": Adam(learning_rate=1e-2)}


def learner_of(loss: PPOLoss) -> TorchLearner:
    learner = TorchLearner(
        policy(), normalize=False, iterations=ITERATIONS, **SETTINGS, **records(loss)
    )
    learner.load(policy().initial_parameters(np.random.default_rng(0)))
    return learner


def follower_of(path: Path, number: int, loss: PPOLoss) -> GradientWorker:
    context = SimpleNamespace(host=f"host-{number}", recorder=Recorder("test", 1 << 12))
    worker = GradientWorker(
        context,
        policy=policy,
        spaces=SPACES.to_json(),
        normalize=False,
        iterations=ITERATIONS,
        max_lag=0,
        lag="exact",
    )
    words = {name: describe(each, where=name) for name, each in records(loss).items()}
    worker.join({**words, **SETTINGS}, str(path), number, LIMIT_S)
    return worker


@contextmanager
def spread(path: Path, learner: TorchLearner) -> Iterator[Spread]:
    """The learner leads at `path`."""
    size = learner.parameters.size
    learner.spread = Spread(Leader(str(path)), shards=learner.shards, parameters=size)
    with ExitStack() as at_end:
        at_end.callback(learner.spread.close)
        yield learner.spread


def updates(learner: TorchLearner, followers: list[int], workers: list[GradientWorker]) -> list:
    """Metrics of an iteration for each of `followers`, so many of the workers taking part."""
    found = []
    for version, count in enumerate(followers):
        threads = [
            threading.Thread(target=worker.follow, args=(LIMIT_S,)) for worker in workers[:count]
        ]
        for thread in threads:
            thread.start()
        if learner.spread is not None:
            learner.spread.begin(count, limit_s=LIMIT_S)
        batch = random_batch(SPACES, horizon=5, slots=4, seed=version, version=version)
        found.append(
            learner.update(
                batch,
                statistics=Statistics.initial(SPACES),
                scales={version: 1.0},
                version=version,
                seed=3,
            )
        )
        if learner.spread is not None:
            learner.spread.end()
        for thread in threads:
            thread.join(LIMIT_S)
    return found


@settings(max_examples=8, deadline=None)
@given(
    followers=st.lists(st.integers(0, 3), min_size=ITERATIONS, max_size=ITERATIONS),
    normalize=st.sampled_from(["minibatch", "batch", "none"]),
    target_kl=st.sampled_from([None, 0.05]),
)
def test_any_number_of_followers_yields_the_same_bits(
    tmp_path_factory, followers, normalize, target_kl
):
    loss = PPOLoss(clip=0.2, normalize_advantages=normalize, target_kl=target_kl)
    alone, led = learner_of(loss), learner_of(loss)
    expected = updates(alone, [0] * ITERATIONS, [])
    path = tmp_path_factory.mktemp("led") / "leader"
    with spread(path, led):
        workers = [follower_of(path, number, loss) for number in range(1, max(followers) + 1)]
        assert updates(led, followers, workers) == expected
        for worker in workers:
            worker.close()
    assert led.parameters.tobytes() == alone.parameters.tobytes()
    for name, values in alone.state().items():
        assert led.state()[name].tobytes() == values.tobytes(), name


@given(shards=st.integers(1, 40), participants=st.integers(1, 12))
def test_every_shard_has_one_participant_and_shares_are_even(shards, participants):
    shares = [shards_of(number, participants, shards) for number in range(participants)]
    assert [shard for share in shares for shard in share] == list(range(shards))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_follower_that_gives_up_says_why_and_one_that_is_gone_is_named(tmp_path):
    loss = PPOLoss(clip=0.2)
    learner = learner_of(loss)
    with spread(tmp_path / "leader", learner) as led:
        worker = follower_of(tmp_path / "leader", 1, loss)
        worker._learner.shard_gradient = lambda *_, **__: 1 / 0
        failed: list[BaseException] = []

        def follow() -> None:
            try:
                worker.follow(LIMIT_S)
            except ZeroDivisionError as error:
                failed.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        led.begin(1, limit_s=LIMIT_S)
        led.buffers({"logp": np.zeros(20, np.float32)})
        led.ask(slice(0, 7), progress=0.0, parameters=learner.parameters)
        with pytest.raises(EngineError, match="follower 1 gave up: ZeroDivisionError"):
            list(led.answers(4))
        thread.join(LIMIT_S)
        assert failed
        worker.close()
        with pytest.raises(PeerGone, match="follower 1"):  # the first to be told notices
            led.ask(slice(0, 7), progress=0.0, parameters=learner.parameters)
