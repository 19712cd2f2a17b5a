"""A sum tree over priorities: setting and drawing K leaves costs K log(leaves), vectorised.

Schaul et al., Prioritized Experience Replay (2016), appendix B.2.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class SumTree:
    """Non-negative float64 priorities of `leaves` entries, all 0 at first.

    Node 1 is the root, node i has the children 2i and 2i + 1; leaves begin at `first`. Every inner
    node is the sum of its two children, always added in the same order, so that the tree's bits
    follow from its leaves alone.
    """

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self.first = 1 << max(0, (leaves - 1).bit_length())
        self._nodes = np.zeros(2 * self.first)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[1])

    def of(self, index: Int64) -> Float64:
        """The priorities of leaves [K]."""
        return np.asarray(self._nodes[self.first + index])

    def put(self, index: Int64, priority: Float64 | float) -> None:
        """Give leaves [K] the priorities [K]; of a leaf named twice the last one counts."""
        if not len(index):
            return
        self._nodes[self.first + index] = priority
        node = np.unique((self.first + index) >> 1)
        while node[0] > 0:
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]
            node = np.unique(node >> 1)

    def find(self, mass: Float64) -> Int64:
        """Leaves [K] in whose share of the total the masses [K], in [0, total), fall.

        A leaf of priority 0 is never found, whatever the rounding, where any other is above 0.
        """
        node = np.ones(len(mass), np.int64)
        left_of = np.array(mass, np.float64)
        for _ in range(self.first.bit_length() - 1):
            left, right = 2 * node, 2 * node + 1
            below = self._nodes[left]
            goes_right = (left_of >= below) & (self._nodes[right] > 0.0)
            left_of = np.where(goes_right, left_of - below, left_of)
            node = np.where(goes_right, right, left)
        return node - self.first

    def leaves_view(self) -> Float64:
        """The priorities of all leaves, to be saved."""
        return self._nodes[self.first : self.first + self.leaves]
