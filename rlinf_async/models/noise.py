"""Noise that belongs to the episodes of a cell's slots, not to the cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import BadInput


class SlotNoise:
    """What policies take for a `numpy.random.Generator`: row i of a draw is slot i's own.

    An episode then sees the same noise in whichever slot it runs, and beside whatever others. Axes
    of what is drawn: [n, ...], n slots.
    """

    def __init__(self, slots: int) -> None:
        self._of_slot = [np.random.Generator(np.random.PCG64(0)) for _ in range(slots)]

    def begin(self, slot: int, generator: np.random.Generator) -> None:
        """The noise of `slot` comes from `generator` from now on."""
        self._of_slot[slot] = generator

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> npt.NDArray[Any]:
        """As the generator's method."""
        return self._rows(lambda rng, shape: rng.standard_normal(shape, dtype=dtype), size)

    def random(self, size: Any = None, dtype: Any = np.float64) -> npt.NDArray[Any]:
        """As the generator's method."""
        return self._rows(lambda rng, shape: rng.random(shape, dtype=dtype), size)

    def standard_exponential(self, size: Any = None, dtype: Any = np.float64) -> npt.NDArray[Any]:
        """As the generator's method."""
        return self._rows(lambda rng, shape: rng.standard_exponential(shape, dtype=dtype), size)

    def normal(
        self, loc: float = 0.0, scale: float = 1.0, size: Any = None
    ) -> npt.NDArray[np.float64]:
        """As the generator's method."""
        return self._rows(lambda rng, shape: rng.normal(loc, scale, shape), size)

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: Any = None
    ) -> npt.NDArray[np.float64]:
        """As the generator's method."""
        return self._rows(lambda rng, shape: rng.uniform(low, high, shape), size)

    def _rows(
        self, draw: Callable[[np.random.Generator, tuple[int, ...]], Any], size: Any
    ) -> npt.NDArray[Any]:
        shape = (size,) if isinstance(size, int) else tuple(size or ())
        if not shape or shape[0] != len(self._of_slot):
            raise BadInput(
                "policy",
                "noise of an episode is drawn step by step, for each slot its own",
                expected=f"a draw of [{len(self._of_slot)}, ...]",
                got=list(shape),
            )
        return np.stack([draw(rng, shape[1:]) for rng in self._of_slot])
