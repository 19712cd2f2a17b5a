"""The gradient worker: computes shards of the learner's gradient, wherever cores are free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rlinf_async.algorithms.spread import Followed, ShardResult, shards_of
from rlinf_async.algorithms.torch_learner import TorchLearner
from rlinf_async.communication.lockstep import Follower
from rlinf_async.execution.spaces import Spaces
from rlinf_async.execution.worker import Worker, WorkerContext
from rlinf_async.tracing.waits import Wait
from rlinf_async.workers.train import learner_of


class GradientWorker(Worker):
    """Follows a learner in another process, step by step.

    Waits for:    the learner's next mini-batch (input).
    Unblocked by: the train worker.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        policy: Callable[[], Any],
        spaces: dict[str, Any],
        normalize: bool,
        iterations: int,
        max_lag: int,
        lag: Literal["exact", "free"],
    ) -> None:
        super().__init__(context)
        self._policy, self._spaces = policy(), Spaces.from_json(spaces)
        self._normalize, self._iterations = normalize, iterations
        self._max_lag, self._lag = max_lag, lag
        self._followed: Followed | None = None
        self._clock = context.recorder.stage(f"gradient@{context.host}")

    def join(self, settings: dict[str, Any], address: str, number: int, limit_s: float) -> None:
        """Be follower `number`, counted from 1, of the learner that leads at `address`."""
        learner = learner_of(
            self._policy,
            self._spaces,
            settings=settings,
            normalize=self._normalize,
            iterations=self._iterations,
            max_lag=self._max_lag,
            lag=self._lag,
        )
        assert isinstance(learner, TorchLearner), "only torch's gradients come in shards"
        self._learner, self._number = learner, number
        self._followed = Followed(Follower(address, number, limit_s=limit_s))

    def follow(self, limit_s: float) -> int:
        """Take steps until the leader ends them; returns how many. `limit_s` of each wait."""
        steps, followed = 0, self._followed
        assert followed is not None, "follow before join"
        try:
            while self._asked(followed, limit_s):
                self._step(followed)
                steps += 1
        except Exception as error:
            followed.give_up(f"{type(error).__name__}: {error}")
            raise
        return steps

    def close(self) -> None:
        """Leave the learner."""
        if self._followed is not None:
            self._followed.close()

    def _asked(self, followed: Followed, limit_s: float) -> bool:
        with self._clock.waiting(Wait.INPUT, on="train"):
            return followed.next(limit_s=limit_s)

    def _step(self, followed: Followed) -> None:
        asked = followed.asked
        part = self._learner.minibatch(followed.minibatch())
        np.copyto(self._learner.parameters, followed.parameters)
        self._learner.begin(asked["progress"])
        cuts = self._learner.cuts(part)
        names: list[str] = []
        with self.context.recorder.span("gradient", items=part["logp"].numel()):
            for shard in shards_of(self._number, asked["participants"], len(cuts)):
                parts, finite = self._learner.shard_gradient(part, cuts[shard], fresh=True)
                metrics = {name: float(value) for name, value in parts.items()}
                followed.put(shard, ShardResult(self._learner.gradient, metrics, finite))
                names = list(metrics)
        followed.answer(names)
