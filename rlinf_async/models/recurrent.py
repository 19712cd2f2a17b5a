"""A recurrent core: a gated recurrent unit whose state the caller keeps.

Axes: T time, B slots, N entries, F inputs, H units. The state of an episode's start is 0, and
`sequence` sets it so wherever an episode begins inside the sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GatedRecurrentUnit(nn.Module):
    """Cho et al. (2014), in the form of cuDNN: the reset gate acts behind the state's product.

        r = sigmoid(W_r x + U_r h)    z = sigmoid(W_z x + U_z h)
        n = tanh(W_n x + r (U_n h))   h' = (1 - z) n + z h

    Every product has a bias. `step` and `sequence` do the same operations in the same order.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.input = nn.Linear(inputs, 3 * units)
        self.hidden = nn.Linear(units, 3 * units)
        for layer in (self.input, self.hidden):
            for gate in torch.split(layer.weight, units):
                nn.init.orthogonal_(gate)
            nn.init.zeros_(layer.bias)

    def step(self, x_NF: Tensor, state_NH: Tensor) -> Tensor:
        """The next state [N, H], which is the output too."""
        return self._next(self.input(x_NF), state_NH)

    def sequence(self, x_TBF: Tensor, state_BH: Tensor, first_TB: Tensor) -> Tensor:
        """The states after every entry, [T, B, H]; gradients flow back through time.

        `first_TB` bool: the entry begins an episode, so the state before it is 0.
        """
        projected_TBG = self.input(x_TBF)
        zero = torch.zeros((), dtype=state_BH.dtype, device=state_BH.device)
        states: list[Tensor] = []
        for projected_BG, first_B in zip(projected_TBG, first_TB.unsqueeze(-1), strict=True):
            state_BH = self._next(projected_BG, torch.where(first_B, zero, state_BH))
            states.append(state_BH)
        return torch.stack(states)

    def _next(self, projected_NG: Tensor, state_NH: Tensor) -> Tensor:
        gates = 2 * self.units
        fed_back = self.hidden(state_NH)
        reset, update = (projected_NG[:, :gates] + fed_back[:, :gates]).sigmoid().chunk(2, dim=1)
        candidate = (projected_NG[:, gates:] + reset * fed_back[:, gates:]).tanh()
        return torch.lerp(candidate, state_NH, update)
