"""Acting with the built-in policies in numpy.

Axes: T horizon, n slots of the cell, A outputs of the actor, D observation numbers.

A step runs the actor alone; log-probs and values of a whole segment come from a few large calls at
its end, which cost a fraction of T small ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_async.algorithms.normalizers import Moments, affine, normalize
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models.acting import ActCall
from rlinf_async.models.heads import gaussian_logp, log_softmax
from rlinf_async.models.mlp_kernel import ACTOR, CRITIC, Pass
from rlinf_async.models.noise import SlotNoise
from rlinf_async.models.policies import BuiltinPolicy, GaussianActorCritic

Array = NDArray[Any]
Float32 = NDArray[np.float32]


class FusedActor:
    """The `Actor` of a built-in policy."""

    def __init__(
        self, policy: BuiltinPolicy, spaces: Spaces, slots: int, *, normalize: bool
    ) -> None:
        self._pair = policy.to_kernel()
        self._gaussian = isinstance(policy, GaussianActorCritic)
        self._slots, self._action = slots, spaces.action
        self._eye = Eye(spaces, normalize=normalize)
        self._actor = self._pair.open(slots, ACTOR)
        self._critic = self._pair.open(slots, CRITIC)
        self._actors = {slots: self._actor}
        self._critics = {slots: self._critic}
        self._std: Float32 = np.ones(policy.output_size, dtype=np.float32)
        self._by_slot: SlotNoise | None = None
        self._noise: Float32 = np.empty((0, slots, policy.output_size), dtype=np.float32)
        self._outputs: Float32 = np.empty((0, policy.output_size, slots), dtype=np.float32)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy a weights row's parameters; a few ten kilobytes, into aligned memory."""
        np.copyto(self._pair.parameters, weights["parameters"])
        self._eye.load(weights)
        if self._gaussian:
            self._std = np.exp(self._pair.weights["log_std"])

    def begin(self, rng: np.random.Generator, horizon: int) -> None:
        """Draw the noise of the whole segment at once, where it is that of the whole cell."""
        shape = (horizon, self._slots, self._pair.outputs)
        self._by_slot = rng if isinstance(rng, SlotNoise) else None
        if self._by_slot is None:
            self._noise = self._draw(rng, shape)
        if len(self._outputs) != horizon:
            self._outputs = np.empty((horizon, *shape[:0:-1]), dtype=np.float32)

    def act(self, t: int, observation: Mapping[str, Array]) -> Array:
        """Sample actions [n, *shape] before step t."""
        self._eye.see(observation, self._actor.x)
        self._actor.forward()
        return self._sampled(t, self._actor.output)

    @staticmethod
    def act_together(calls: Sequence[ActCall]) -> list[Array]:
        """Actions of several cells with the same weights; see `acting.act_together`."""
        first: FusedActor = calls[0].actor
        edges = [0, *itertools.accumulate(call.actor._slots for call in calls)]
        whole = first._joined(edges[-1])
        for call, start, stop in zip(calls, edges, edges[1:], strict=False):
            call.actor._eye.see(call.observation, whole.x[start:stop])
        whole.forward()
        return [
            call.actor._sampled(call.t, whole.output[:, start:stop])
            for call, start, stop in zip(calls, edges, edges[1:], strict=False)
        ]

    def finish(self, row: Mapping[str, Array], start: int, stop: int) -> None:
        """Write `logp`, `value` and `final_value` of steps start to stop."""
        at = slice(start, stop)
        row["logp"][at] = self._logp(row["action"][at], self._outputs[at])
        seen = {name: row[f"obs/{name}"][at] for name in self._eye.names}
        flat = {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in seen.items()}
        row["value"][at] = self._values(flat).reshape(stop - start, self._slots)
        cut = row["truncated"][at] & ~row["terminated"][at]
        if cut.any():
            ends = {name: row[f"final/{name}"][at][cut] for name in self._eye.names}
            row["final_value"][at][cut] = self._values(ends)

    def value(self, observation: Mapping[str, Array]) -> Float32:
        """Values [n] of raw observations."""
        return self._value_call(self._critic, observation).copy()

    def forget(self, slots: Array) -> None:
        """Nothing is remembered."""

    def _draw(self, rng: np.random.Generator | SlotNoise, shape: tuple[int, ...]) -> Float32:
        if self._gaussian:
            return rng.standard_normal(shape, dtype=np.float32)
        # The largest of logits plus Gumbel noise is a sample of the softmax.
        uniform = rng.random(shape, dtype=np.float32)
        noise: Float32 = -np.log(-np.log(np.maximum(uniform, np.finfo(np.float32).tiny)))
        return noise

    def _sampled(self, t: int, output: Float32) -> Array:
        """Actions [n, *shape] from outputs [A, n] and the noise of step t."""
        self._outputs[t] = output
        if self._by_slot is None:
            noise = self._noise[t]
        else:
            noise = self._draw(self._by_slot, (self._slots, self._pair.outputs))
        if not self._gaussian:
            return np.asarray(np.argmax(output.T + noise, axis=1))
        np.multiply(noise, self._std, out=noise)
        np.add(noise, output.T, out=noise)
        return np.asarray(noise.reshape(self._slots, *self._action.shape))

    def _joined(self, slots: int) -> Pass:
        """The actor's net for so many slots."""
        if slots not in self._actors:
            self._actors[slots] = self._pair.open(slots, ACTOR)
        return self._actors[slots]

    def _logp(self, action: Array, outputs: Float32) -> Float32:
        """Log-probs [t, n] of actions [t, n, *shape] under outputs [t, A, n]."""
        steps = len(outputs)
        if not self._gaussian:
            log_p = log_softmax(outputs, out=np.empty_like(outputs))
            chosen = np.take_along_axis(log_p, action[:, None, :], axis=1)
            return np.asarray(chosen[:, 0])
        action_tAn = action.reshape(steps, self._slots, -1).swapaxes(1, 2)
        log_std = self._pair.weights["log_std"]
        z = (action_tAn - outputs) * np.exp(-log_std)[:, None]
        out: Float32 = np.empty((steps, self._slots), dtype=np.float32)
        return gaussian_logp(np.square(z, out=z), log_std, out=out)

    def _values(self, rows: Mapping[str, Array]) -> Float32:
        """Values [M] of M rows: one call for a whole segment, else calls of n rows, padded."""
        count = len(next(iter(rows.values())))
        if count == len(self._outputs) * self._slots:
            if count not in self._critics:
                self._critics[count] = self._pair.open(count, CRITIC)
            return self._value_call(self._critics[count], rows)
        values: Float32 = np.empty(count, dtype=np.float32)
        for start in range(0, count, self._slots):
            index = np.arange(start, start + self._slots)
            index[index >= count] = start
            part = {name: each[index] for name, each in rows.items()}
            stop = min(start + self._slots, count)
            values[start:stop] = self._value_call(self._critic, part)[: stop - start]
        return values

    def _value_call(self, critic: Pass, rows: Mapping[str, Array]) -> Float32:
        self._eye.see(rows, critic.x)
        critic.forward()
        return critic.value


class Eye:
    """Writes raw observations into a net's input as the policy sees them."""

    def __init__(self, spaces: Spaces, *, normalize: bool) -> None:
        self.names = [spec.name for spec in spaces.observation]
        self._normalize = normalize
        self._parts: dict[str, slice] = {}
        start = 0
        for spec in spaces.observation:
            self._parts[spec.name] = slice(start, start + spec.shape[0])
            start += spec.shape[0]
        self._affine = {s.name: affine(Moments.initial(s.shape)) for s in spaces.observation}

    def load(self, weights: Mapping[str, Array]) -> None:
        """Use the moments of a weights row."""
        if self._normalize:
            for name in self.names:
                mean, var = weights[f"mean/{name}"], weights[f"var/{name}"]
                self._affine[name] = affine(Moments(count=0.0, mean=mean, var=var))

    def see(self, observation: Mapping[str, Array], x: Float32) -> None:
        """Fill x[:, :-1] [M, D] from observations [M, *shape]."""
        for name, part in self._parts.items():
            if self._normalize:
                normalize(observation[name], *self._affine[name], out=x[:, part])
            else:
                x[:, part] = observation[name]


class Chooser:
    """Actions of a built-in policy for any number of normalised observations."""

    def __init__(self, policy: BuiltinPolicy, spaces: Spaces, parameters: Float32) -> None:
        self._pair = policy.to_kernel()
        self._gaussian = isinstance(policy, GaussianActorCritic)
        self._names = [spec.name for spec in spaces.observation]
        self._nets: Pass | None = None
        """Of the last call, for calls of as many rows."""
        np.copyto(self._pair.parameters, parameters)

    def __call__(
        self, rows: Mapping[str, Array], deterministic: bool, rng: np.random.Generator
    ) -> Array:
        """Actions [N, A], or choices [N], for observations [N, *shape]."""
        x = np.concatenate([rows[name] for name in self._names], axis=1)
        if self._nets is None or len(self._nets.x) != len(x):
            self._nets = self._pair.open(len(x), ACTOR)
        nets = self._nets
        nets.x[:, :-1] = x
        nets.forward()
        output = nets.output.T
        if self._gaussian:
            if deterministic:
                return output.copy()
            std = np.exp(self._pair.weights["log_std"])
            return np.asarray(output + std * rng.standard_normal(output.shape, dtype=np.float32))
        noise = 0.0 if deterministic else rng.gumbel(size=output.shape)
        return np.asarray(np.argmax(output + noise, axis=1))
