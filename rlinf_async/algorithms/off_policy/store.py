"""What replay remembers: a ring of steps for every slot, each observation stored once.

Axes: T steps, B slots, L entries of a slot's ring, N samples, A action components, C sub-steps.

An entry is an observation with the action taken in it, its reward and its two end bits. The true
last observation of an episode takes an entry of its own, which has no action (`valid` is False);
the next episode begins behind it. So the observation after entry j is always the one in entry
j + 1, episodes never touch, and the newest observation, at the write head, is there as a successor
although nothing was done in it yet. Every valid entry can be sampled: its successor is stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.communication.fields import Field, Layout
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

READ_LIMIT_S = 10.0
"""A reader that the writer has overtaken for so long gives up."""


def store_fields(spaces: Spaces, *, slots: int, length: int) -> list[Field]:
    """The arrays of a store, as the fields of one row of a pool."""
    size = int(np.prod(spaces.action.shape))
    fields = [
        Field(name=f"obs/{spec.name}", shape=(slots, length, *spec.shape), dtype=spec.dtype)
        for spec in spaces.observation
    ]
    return [
        *fields,
        Field(name="action", shape=(slots, length, size), dtype="float32"),
        Field(name="reward", shape=(slots, length, spaces.chunk), dtype="float32"),
        Field(name="executed", shape=(slots, length), dtype="int32"),
        Field(name="terminated", shape=(slots, length), dtype="bool"),
        Field(name="truncated", shape=(slots, length), dtype="bool"),
        Field(name="valid", shape=(slots, length), dtype="bool"),
        Field(name="written", shape=(slots,), dtype="int64"),
        Field(name="generation", shape=(1,), dtype="int64"),
    ]


def store_bytes(spaces: Spaces, *, slots: int, length: int) -> int:
    """Bytes that a store takes."""
    return Layout(store_fields(spaces, slots=slots, length=length)).row_bytes


class Store:
    """Rings of `L` entries for B slots over arrays that may lie in shared memory. One writer."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """`arrays`: zeroed, or those of a store that somebody else writes (see `store_fields`)."""
        self.arrays = dict(arrays)
        self.slots, self.length = self.arrays["valid"].shape
        self._written: Int64 = self.arrays["written"]
        self._generation: Int64 = self.arrays["generation"]
        self._valid: Bools = self.arrays["valid"]
        self.names = [name for name in self.arrays if name.startswith("obs/")]

    @classmethod
    def private(cls, spaces: Spaces, *, slots: int, length: int) -> Store:
        """A store in this process's own memory."""
        fields = store_fields(spaces, slots=slots, length=length)
        return cls({f.name: np.zeros(f.shape, f.dtype) for f in fields})

    def __len__(self) -> int:
        """Valid entries, each a step that can be sampled."""
        return int(np.count_nonzero(self._valid))

    def insert(self, batch: Mapping[str, Array]) -> Int64:
        """Append T steps of every slot; returns the flat indices of entries that were written.

        Args:
            batch: `obs/<name>` [T + 1, B, *shape], `final/<name>` [T, B, *shape], `action`
                [T, B, A] in [-1, 1], `reward` [T, B] or [T, B, C], `executed` [T, B] with chunks,
                `terminated` and `truncated` [T, B].

        Raises BadInput where T steps may not fit into a slot's ring.
        """
        self._check(batch)
        ended_TB = batch["terminated"] | batch["truncated"]
        steps = len(ended_TB)
        # An ended episode's last observation moves everything behind it by one entry.
        shift_TB: Int64 = np.cumsum(ended_TB, axis=0) - ended_TB
        place_TB = self._written + np.arange(steps)[:, None] + shift_TB
        slot_TB = np.broadcast_to(np.arange(self.slots), place_TB.shape)
        head_B = self._written + steps + ended_TB.sum(axis=0)
        # Odd while entries are written: see `reading`.
        self._generation += 1
        self._write(batch, slot_TB, place_TB % self.length)
        ends = (slot_TB[ended_TB], (place_TB[ended_TB] + 1) % self.length)
        heads = (np.arange(self.slots), head_B % self.length)
        for name in self.names:
            self.arrays[name][ends] = batch[name.replace("obs/", "final/", 1)][ended_TB]
            self.arrays[name][heads] = batch[name][steps]
        self._valid[ends] = False
        self._valid[heads] = False
        self._written[...] = head_B
        self._generation += 1
        return np.concatenate(
            [self._flat(slot_TB.ravel(), place_TB.ravel()), self._flat(*ends), self._flat(*heads)]
        )

    def valid_at(self, index: Int64) -> Bools:
        """Which of flat indices [N] can be sampled."""
        return np.asarray(self._valid.reshape(-1)[index])

    def draw(self, count: int, rng: np.random.Generator) -> Int64:
        """Flat indices [count] of valid entries, uniformly and with replacement.

        The cost does not depend on the number of entries: what is not valid, at most every other
        entry, is drawn again.
        """
        kept_B = np.minimum(self._written, self.length - 1)
        stop_B = np.cumsum(kept_B)
        if stop_B[-1] == 0:
            raise BadInput("replay", "there is nothing to sample yet", fix="insert a batch first")
        found: list[Int64] = []
        missing = count
        while missing:
            number = rng.integers(stop_B[-1], size=missing + missing // 8 + 8)
            slot = np.searchsorted(stop_B, number, side="right")
            back = stop_B[slot] - number
            index = self._flat(slot, self._written[slot] - back)
            index = index[self.valid_at(index)][:missing]
            found.append(index)
            missing -= len(index)
        return np.concatenate(found)

    def transitions(self, index: Int64, *, steps: int, gamma: float) -> dict[str, Array]:
        """The n-step transitions, n = `steps`, that begin at flat indices [N].

        h = steps to the nearest of n, the episode's end and the write head; `reward` [N] is
        sum_{i<h} gamma^i r_i and `discount` [N] is gamma^h (1 - terminated), gamma per simulator
        step; `obs/<name>` and `next/<name>` are where it began and where it bootstraps.
        """
        slot, place = np.divmod(index, self.length)
        reward, discount = np.zeros(len(index)), np.ones(len(index))
        going = np.ones(len(index), np.bool_)
        at = np.array(place)
        for _ in range(steps):
            going &= self._valid[slot, at]
            earned, kept = self._earned(slot, at, gamma)
            reward += np.where(going, discount * earned, 0.0)
            discount = np.where(going, discount * kept, discount)
            discount[going & self.arrays["terminated"][slot, at]] = 0.0
            ended = self.arrays["terminated"][slot, at] | self.arrays["truncated"][slot, at]
            at = np.where(going, (at + 1) % self.length, at)
            going &= ~ended
        found: dict[str, Array] = {}
        for name in self.names:
            found[name] = self.arrays[name][slot, place]
            found[name.replace("obs/", "next/", 1)] = self.arrays[name][slot, at]
        found["action"] = self.arrays["action"][slot, place]
        found["reward"] = reward.astype(np.float32)
        found["discount"] = discount.astype(np.float32)
        return found

    def sequences(self, index: Int64, *, steps: int) -> dict[str, Array]:
        """Up to `steps` entries from flat indices [N] on, within one episode: fields [N, steps].

        `mask` [N, steps] marks the entries that belong to it; the others are zero. `last/<name>`
        [N, *shape] is the observation after the last marked one.
        """
        slot, place = np.divmod(index, self.length)
        ring = (place[:, None] + np.arange(steps)) % self.length
        at = (slot[:, None], ring)
        mask = np.logical_and.accumulate(self._valid[at], axis=1)
        found: dict[str, Array] = {"mask": mask}
        for name in (*self.names, "action", "reward", "executed", "terminated", "truncated"):
            taken = self.arrays[name][at]
            taken[~mask] = 0
            found[name] = taken
        after = (place + mask.sum(axis=1)) % self.length
        for name in self.names:
            found[name.replace("obs/", "last/", 1)] = self.arrays[name][slot, after]
        return found

    def reading(self, read: Any) -> Any:
        """What `read()` returns, for readers in other processes: read again if it was torn.

        The writer's generation is odd while it writes; a read counts where it was even and the same
        before and after.
        """
        give_up_s = time.monotonic() + READ_LIMIT_S
        while time.monotonic() < give_up_s:
            before = int(self._generation[0])
            if before % 2 == 0:
                found = read()
                if int(self._generation[0]) == before:
                    return found
            os.sched_yield()  # the writer may wait for this very core
        raise BadInput("replay", f"no read in {READ_LIMIT_S:g} s that the writer did not overtake")

    def save(self, path: Path) -> None:
        """Write all of it into one `.npz` file."""
        with open(path, "wb") as file:
            np.savez(file, **{n.replace("/", "."): a for n, a in self.arrays.items()})  # type: ignore[arg-type]

    def restore(self, path: Path) -> None:
        """The inverse of `save`; BadInput for a store of another shape."""
        with np.load(path) as found:
            for name, array in self.arrays.items():
                saved = found[name.replace("/", ".")]
                if saved.shape != array.shape or saved.dtype != array.dtype:
                    raise BadInput(
                        str(path),
                        f"holds another replay: {name}",
                        expected=f"{array.dtype} {array.shape}",
                        got=f"{saved.dtype} {saved.shape}",
                    )
                array[...] = saved

    def _flat(self, slot: Array, place: Array) -> Int64:
        return np.asarray(slot * self.length + place % self.length, np.int64)

    def _write(self, batch: Mapping[str, Array], slot_TB: Array, ring_TB: Array) -> None:
        at = (slot_TB, ring_TB)
        steps = len(slot_TB)
        for name in self.names:
            self.arrays[name][at] = batch[name][:steps]
        reward = batch["reward"]
        self.arrays["reward"][at] = reward if reward.ndim == 3 else reward[..., None]
        self.arrays["executed"][at] = batch.get("executed", 1)
        for name in ("action", "terminated", "truncated"):
            self.arrays[name][at] = batch[name]
        self._valid[at] = True

    def _earned(self, slot: Int64, at: Int64, gamma: float) -> tuple[Array, Array]:
        """Discounted reward of single entries and the discount of what follows, float64 [N]."""
        reward, executed = self.arrays["reward"][slot, at], self.arrays["executed"][slot, at]
        if reward.shape[1] == 1:
            return reward[:, 0].astype(np.float64), np.full(len(at), gamma)
        sub_step = np.arange(reward.shape[1])
        earned = np.where(sub_step < executed[:, None], gamma**sub_step * reward, 0.0)
        return earned.sum(axis=1), gamma ** executed.astype(np.float64)

    def _check(self, batch: Mapping[str, Array]) -> None:
        steps, slots = batch["terminated"].shape
        if slots != self.slots:
            raise BadInput("replay", "another number of slots", expected=self.slots, got=slots)
        longest = steps + int((batch["terminated"] | batch["truncated"]).sum(axis=0).max()) + 1
        if longest > self.length:
            raise BadInput(
                "replay",
                f"{steps} steps of each slot do not fit",
                expected=f"a capacity of at least {longest * slots} for {slots} slots",
                got=self.length * slots,
                fix="use a larger capacity or a shorter horizon",
            )
