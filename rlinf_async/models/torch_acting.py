"""Acting with a torch policy: one actor per cell, every policy call of the cell's fixed shape.

Axes: T horizon, n slots of the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlinf_async.algorithms.normalizers import Moments, affine, is_normalized, normalize
from rlinf_async.errors import BadInput
from rlinf_async.execution.memory import state_shape
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models.acting import ActCall
from rlinf_async.models.modules import (
    RecurrentPolicyModule,
    as_module,
    check_chunks,
    flatten,
    policy_calls,
)

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


class TorchActor:
    """The `Actor` of any policy module.

    Log-probs and values of a step come from its own `act` call and are kept until `finish` writes
    them; values of last observations come from calls that compute nothing else.
    """

    def __init__(self, policy: Any, spaces: Spaces, slots: int, *, normalize: bool) -> None:
        module = as_module(policy).eval()
        if spaces.chunk > 1:
            check_chunks(module)
        flat, _ = flatten(module, gradient=False)
        self._policy = policy_calls(module)
        self._parameters: Float32 = flat.numpy()
        self._slots, self._action = slots, spaces.action
        self._names = [spec.name for spec in spaces.observation]
        # Names whose observations are normalised, with the mean and inverse deviation to use.
        self._affine = {
            spec.name: affine(Moments.initial(spec.shape))
            for spec in spaces.observation
            if normalize and is_normalized(spec)
        }
        self._rng = np.random.default_rng(0)
        self._logp: Float32 = np.empty((0, slots), dtype=np.float32)
        self._value: Float32 = np.empty((0, slots), dtype=np.float32)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy a weights row's parameters and observation moments."""
        np.copyto(self._parameters, weights["parameters"])
        for name in self._affine:
            moments = Moments(count=0.0, mean=weights[f"mean/{name}"], var=weights[f"var/{name}"])
            self._affine[name] = affine(moments)

    def begin(self, rng: np.random.Generator, horizon: int) -> None:
        """Start a segment of `horizon` steps whose noise comes from `rng`."""
        self._rng = rng
        if len(self._logp) != horizon:
            self._logp = np.empty((horizon, self._slots), dtype=np.float32)
            self._value = np.empty((horizon, self._slots), dtype=np.float32)

    def act(self, t: int, observation: Mapping[str, Array]) -> Array:
        """Actions [n, *shape] for the raw observations [n, *shape] before step t."""
        with torch.inference_mode():
            return self._keep(t, *self._policy.act(self._see(observation), self._rng))

    @staticmethod
    def act_together(calls: Sequence[ActCall]) -> list[Array]:
        """Actions of several cells with the same weights; see `acting.act_together`.

        The noise of all of them comes from the first one's generator.
        """
        first: TorchActor = calls[0].actor
        with torch.inference_mode():
            found = first._policy.act(joined_observations(calls), first._rng)
            parts = zip(*(torch.split(each, slots_of(calls)) for each in found), strict=True)
            return [
                call.actor._keep(call.t, *part) for call, part in zip(calls, parts, strict=True)
            ]

    def finish(self, row: Mapping[str, Array], start: int, stop: int) -> None:
        """Write log-probs, values and values of truncated episodes' ends of steps start to stop."""
        if "executed" in row:
            self._leave_out_unexecuted(row, start, stop)
        row["logp"][start:stop] = self._logp[start:stop]
        row["value"][start:stop] = self._value[start:stop]
        at = slice(start, stop)
        cut = row["truncated"][at] & ~row["terminated"][at]
        final_value = row["final_value"][at]
        final_value[...] = 0.0
        if cut.any():
            self._final_values(row, at, cut, final_value)

    def value(self, observation: Mapping[str, Array]) -> Float32:
        """Values [n] float32 of raw observations."""
        with torch.inference_mode():
            values: Float32 = self._policy.value(self._see(observation)).numpy()
        return values

    def forget(self, slots: Array) -> None:
        """Nothing is remembered."""

    def _keep(self, t: int, action: Tensor, logp: Tensor, value: Tensor) -> Array:
        """Note what belongs to the actions of step t; the actions as a row has them."""
        self._logp[t] = logp.numpy()
        self._value[t] = value.numpy()
        shape = (self._slots, *self._action.shape)
        return action.numpy().reshape(shape).astype(self._action.row_dtype, copy=False)

    def _final_values(
        self, row: Mapping[str, Array], at: slice, cut: Array, final_value: Array
    ) -> None:
        """Fill in the values of true last observations, where `cut` [t, n] marks them."""
        ends = {name: row[f"final/{name}"][at][cut] for name in self._names}
        count = int(cut.sum())
        parts = [
            self.value({name: each[index] for name, each in ends.items()})
            for index in self._padded(count)
        ]
        final_value[cut] = np.concatenate(parts)[:count]

    def _leave_out_unexecuted(self, row: Mapping[str, Array], start: int, stop: int) -> None:
        """Log-probs again, without the actions of a chunk that were never executed."""
        for t in range(start, stop):
            executed = row["executed"][t]
            if (executed < row["reward"].shape[-1]).any():
                seen = self._see({name: row[f"obs/{name}"][t] for name in self._names})
                with torch.inference_mode():
                    self._logp[t] = self._logp_again(t, seen, row["action"][t], executed)

    def _logp_again(
        self, t: int, seen: dict[str, Tensor], action: Array, executed: Array
    ) -> Float32:
        evaluate: Any = self._policy.evaluate
        again = evaluate(seen, torch.from_numpy(action.copy()), torch.from_numpy(executed.copy()))
        logp: Float32 = again[0].numpy()
        return logp

    def _padded(self, count: int) -> Iterator[npt.NDArray[np.int64]]:
        """Indices of `count` rows in calls of n; the last is filled up with copies of its first."""
        for start in range(0, count, self._slots):
            index = np.arange(start, start + self._slots)
            index[index >= count] = start
            yield index

    def _see(self, observation: Mapping[str, Array]) -> dict[str, Tensor]:
        """Raw observations as the policy sees them; always in arrays of our own."""
        return {
            name: torch.from_numpy(
                normalize(observation[name], *self._affine[name])
                if name in self._affine
                else observation[name].copy()
            )
            for name in self._names
        }


class RecurrentActor(TorchActor):
    """The `Actor` of a policy module with `state_shape`.

    What a slot remembers lives on from segment to segment, across weights versions too: it is that
    of the versions that acted. `forget` makes it 0 where an episode ended.
    """

    def __init__(self, policy: Any, spaces: Spaces, slots: int, *, normalize: bool) -> None:
        super().__init__(policy, spaces, slots, normalize=normalize)
        self._recurrent = cast("RecurrentPolicyModule", self._policy)
        self._shapes = dict(self._recurrent.state_shape)
        self._memory = {n: torch.zeros(slots, *shape) for n, shape in self._shapes.items()}
        self._befores: list[dict[str, Tensor]] = []
        """The memory before each step of the segment, after `forget`."""
        self._afters: list[dict[str, Tensor]] = []
        """The memory after each step, before `forget`."""

    def begin(self, rng: np.random.Generator, horizon: int) -> None:
        """Start a segment; what is remembered stays."""
        super().begin(rng, horizon)
        self._befores, self._afters = [], []

    def act(self, t: int, observation: Mapping[str, Array]) -> Array:
        """Actions [n, *shape] for the raw observations [n, *shape] before step t."""
        with torch.inference_mode():
            *found, memory = self._recurrent.act(self._see(observation), self._rng, self._memory)
            self._remember(memory)
            return self._keep(t, *found)

    @staticmethod
    def act_together(calls: Sequence[ActCall]) -> list[Array]:
        """As `TorchActor.act_together`; every cell keeps its own memory."""
        first: RecurrentActor = calls[0].actor
        before = {
            name: torch.cat([call.actor._memory[name] for call in calls]) for name in first._shapes
        }
        with torch.inference_mode():
            *found, after = first._recurrent.act(joined_observations(calls), first._rng, before)
            slots = slots_of(calls)
            memories = {name: torch.split(each, slots) for name, each in after.items()}
            parts = zip(*(torch.split(each, slots) for each in found), strict=True)
            actions = []
            for number, (call, part) in enumerate(zip(calls, parts, strict=True)):
                call.actor._remember({name: each[number] for name, each in memories.items()})
                actions.append(call.actor._keep(call.t, *part))
            return actions

    def finish(self, row: Mapping[str, Array], start: int, stop: int) -> None:
        """As `TorchActor`, and what was remembered before the segment's first step."""
        if start == 0:
            for name in self._shapes:
                row[f"memory/{name}"][0] = self._befores[0][name].numpy()
        super().finish(row, start, stop)

    def value(self, observation: Mapping[str, Array]) -> Float32:
        """Values [n] float32 of raw observations, given the present memory."""
        return self._value_given(observation, self._memory)

    def forget(self, slots: Array) -> None:
        """Episodes of `slots` [n] bool have ended: what is remembered of them is gone."""
        ended = torch.from_numpy(np.asarray(slots, np.bool_))
        # New tensors: those that are kept must stay what they were.
        self._memory = {
            name: torch.where(ended.reshape(-1, *(1,) * (each.ndim - 1)), 0.0, each)
            for name, each in self._memory.items()
        }

    def _final_values(
        self, row: Mapping[str, Array], at: slice, cut: Array, final_value: Array
    ) -> None:
        steps, slots = np.nonzero(cut)
        for index in self._padded(len(steps)):
            t, b = steps[index], slots[index]
            ends = {name: row[f"final/{name}"][at][t, b] for name in self._names}
            ends_of = list(zip(t, b, strict=True))
            after = {
                name: torch.stack([self._afters[at.start + s][name][slot] for s, slot in ends_of])
                for name in self._shapes
            }
            final_value[t, b] = self._value_given(ends, after)

    def _remember(self, memory: dict[str, Tensor]) -> None:
        """A step leads from the present memory to this one."""
        self._befores.append(self._memory)
        self._memory = memory
        self._afters.append(memory)

    def _logp_again(
        self, t: int, seen: dict[str, Tensor], action: Array, executed: Array
    ) -> Float32:
        never = torch.zeros(1, self._slots, dtype=torch.bool)
        again = self._recurrent.evaluate_sequence(
            {name: each.unsqueeze(0) for name, each in seen.items()},
            torch.from_numpy(action.copy()).unsqueeze(0),
            self._befores[t],
            never,
            torch.from_numpy(executed.copy()).unsqueeze(0),
        )
        logp: Float32 = again[0].squeeze(0).numpy()
        return logp

    def _value_given(
        self, observation: Mapping[str, Array], memory: Mapping[str, Tensor]
    ) -> Float32:
        with torch.inference_mode():
            seen = self._see(observation)
            values: Float32 = self._recurrent.value(seen, memory).numpy()
        return values


def joined_observations(calls: Sequence[ActCall]) -> dict[str, Tensor]:
    """What the policy sees of all cells, one after the other."""
    seen = [call.actor._see(call.observation) for call in calls]
    return {name: torch.cat([each[name] for each in seen]) for name in seen[0]}


def slots_of(calls: Sequence[ActCall]) -> list[int]:
    """The slots of each cell."""
    return [call.actor._slots for call in calls]


class TorchChooser:
    """Actions of any policy module for any number of observations, outside a run.

    A policy with memory remembers its calls, for N environments each, until it is `reset`.
    """

    def __init__(self, policy: Any, parameters: Float32) -> None:
        module = as_module(policy).eval()
        flat, _ = flatten(module, gradient=False)
        np.copyto(flat.numpy(), parameters)
        self._policy: Any = module
        self._mean = getattr(module, "mean", None)
        self._state_shape = state_shape(module)
        self._state: dict[str, Tensor] | None = None

    @property
    def remembers(self) -> bool:
        """Whether the policy has a memory."""
        return bool(self._state_shape)

    def reset(self, finished: npt.NDArray[np.bool_] | None = None) -> None:
        """Forget what belongs to the environments [N] bool that begin an episode; None: to all."""
        if finished is None:
            self._state = None
        elif self._state is not None:
            begun = torch.from_numpy(np.asarray(finished, dtype=np.bool_))
            with torch.inference_mode():  # the memory was made in it
                for memory in self._state.values():
                    memory[begun] = 0.0

    def __call__(
        self, rows: Mapping[str, Array], deterministic: bool, rng: np.random.Generator
    ) -> Array:
        """Actions [N, *shape] as a row stores them for observations [N, *shape] as the policy sees.

        Deterministic actions are those of the module's `mean(observation)`; a module without one
        samples in any case.
        """
        seen = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in rows.items()}
        with torch.inference_mode():
            memory = self._memory(len(next(iter(seen.values()))))
            if deterministic and self._mean is not None:
                chosen = self._mean(seen, *memory)
            else:
                chosen = self._policy.act(seen, rng, *memory)
            if memory:
                self._state = dict(chosen[-1])
            action: Tensor = chosen[0] if isinstance(chosen, tuple) else chosen
            return np.asarray(action.numpy())

    def _memory(self, count: int) -> list[dict[str, Tensor]]:
        """The memory as a policy's last argument; none for one that has none."""
        if not self._state_shape:
            return []
        if self._state is None:
            shapes = self._state_shape.items()
            self._state = {name: torch.zeros(count, *shape) for name, shape in shapes}
        held = len(next(iter(self._state.values())))
        if held != count:
            raise BadInput(
                "this policy's memory",
                "another number of environments than before",
                expected=held,
                got=count,
                fix="call reset() where episodes begin",
            )
        return [self._state]
