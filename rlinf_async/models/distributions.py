"""Distributions over every kind of action, in torch: samples, log-probs, entropies, modes.

Axes: N entries, C actions of a chunk (1 without chunks), D components of one action, K choices of
one component. Everything is float32; samples come from a numpy generator, so that a cell's noise is
the same in every process.

`ActionHead` is what a policy uses: it reads the numbers that the policy's last layer gives for each
entry and knows the layout of the row. The distributions inside see one part of the action each:

    output [N, C, outputs]    action [N, C, D] float32    log-probs and entropies [N, C]

so what belongs to actions of a chunk that were never executed can be left out before the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf_async.execution.spaces import ActionSpec

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)

_NEVER = -1e9
"""Logit of a choice that does not exist: its probability is exactly 0 and so is p log p."""


class Distribution(nn.Module):
    """One part of an action; see the module for shapes."""

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        self.size = size
        """D, components of one action."""
        self.outputs = outputs
        """Numbers of the policy's last layer that one action takes."""

    def sample(self, output: Tensor, rng: np.random.Generator) -> Tensor:
        """A sample [N, C, D] float32; choices count from 0."""
        raise NotImplementedError

    def mode(self, output: Tensor) -> Tensor:
        """The most likely action [N, C, D] float32."""
        raise NotImplementedError

    def logp(self, output: Tensor, action: Tensor) -> Tensor:
        """Log-probs [N, C] of `action`, summed over its components."""
        raise NotImplementedError

    def entropy(self, output: Tensor, action: Tensor) -> Tensor:
        """Entropies [N, C]; only the squashed Gaussian looks at `action`."""
        raise NotImplementedError


class DiagonalGaussian(Distribution):
    """Independent normals; the log deviations [C, D] are learned and the same in every state."""

    def __init__(self, size: int, *, chunk: int, log_std: float) -> None:
        super().__init__(size, outputs=size)
        self.log_std = nn.Parameter(torch.full((chunk, size), float(log_std)))

    def sample(self, output: Tensor, rng: np.random.Generator) -> Tensor:
        """See `Distribution`."""
        noise = torch.from_numpy(rng.standard_normal(output.shape, dtype=np.float32))
        return output + self.log_std.exp() * noise

    def mode(self, output: Tensor) -> Tensor:
        """See `Distribution`."""
        return output

    def logp(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        scaled = (action - output) * (-self.log_std).exp()
        constant = self.log_std.sum(dim=-1) + self.size * _HALF_LOG_TAU
        return -0.5 * scaled.square().sum(dim=-1) - constant

    def entropy(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        entropy_C = (self.log_std + (0.5 + _HALF_LOG_TAU)).sum(dim=-1)
        return entropy_C.expand(len(output), -1)


class SquashedGaussian(DiagonalGaussian):
    """A tanh of normals (Haarnoja et al., 2018, appendix C), for actions with hard bounds.

    Samples and modes are u before the tanh, and so is what a row stores; log-probs are those of
    tanh(u): log N(u) - log(1 - tanh(u)^2), the latter as 2 (log 2 - u - softplus(-2u)).
    """

    def logp(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        return super().logp(output, action) - _log_slope(action).sum(dim=-1)

    def entropy(self, output: Tensor, action: Tensor) -> Tensor:
        """The normals' entropy plus an estimate of the tanh's share from the sample `action`.

        The estimate's gradient goes through mean and deviation, with the sample's noise held.
        """
        std = self.log_std.exp()
        noise = ((action - output) / std).detach()
        return super().entropy(output, action) + _log_slope(output + std * noise).sum(dim=-1)


class Categorical(Distribution):
    """Independent choices, `counts[d]` for component d; logits lie one behind the other."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__(len(counts), outputs=sum(counts))
        self._most = max(counts)
        exists = torch.arange(self._most) < torch.tensor(counts)[:, None]
        self._ragged = len(set(counts)) > 1
        self.register_buffer("_exists", exists, persistent=False)

    def sample(self, output: Tensor, rng: np.random.Generator) -> Tensor:
        """See `Distribution`. Gumbel's maximum: an argmax of noisy logits samples their softmax."""
        logits = self._logits(output)
        waits = rng.standard_exponential(logits.shape, dtype=np.float32)
        noise = torch.from_numpy(-np.log(np.maximum(waits, np.finfo(np.float32).tiny)))
        return (logits + noise).argmax(dim=-1).float()

    def mode(self, output: Tensor) -> Tensor:
        """See `Distribution`."""
        return self._logits(output).argmax(dim=-1).float()

    def logp(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        logp = torch.log_softmax(self._logits(output), dim=-1)
        return logp.gather(-1, action.long().unsqueeze(-1)).squeeze(-1).sum(dim=-1)

    def entropy(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        logp = torch.log_softmax(self._logits(output), dim=-1)
        return -(logp.exp() * logp).sum(dim=(-2, -1))

    def _logits(self, output: Tensor) -> Tensor:
        """[N, C, D, K], filled up with choices that never come where counts differ."""
        if not self._ragged:
            return output.reshape(*output.shape[:2], self.size, self._most)
        exists = cast("Tensor", self._exists)
        padded = output.new_full((*output.shape[:2], self.size, self._most), _NEVER)
        return padded.masked_scatter(exists.expand_as(padded), output)


class Bernoulli(Distribution):
    """Independent bits; the outputs are the logits of 1."""

    def __init__(self, size: int) -> None:
        super().__init__(size, outputs=size)

    def sample(self, output: Tensor, rng: np.random.Generator) -> Tensor:
        """See `Distribution`."""
        chance = torch.from_numpy(rng.random(output.shape, dtype=np.float32))
        return (chance < output.sigmoid()).float()

    def mode(self, output: Tensor) -> Tensor:
        """See `Distribution`."""
        return (output > 0).float()

    def logp(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        return (output * action - functional.softplus(output)).sum(dim=-1)

    def entropy(self, output: Tensor, action: Tensor) -> Tensor:
        """See `Distribution`."""
        return (functional.softplus(output) - output * output.sigmoid()).sum(dim=-1)


class ActionHead(nn.Module):
    """The distribution of a whole action, in the layout of a row.

    Mixed actions have one distribution for each part, side by side in the order of `parts`.

    Args:
        action: the action, whose first axis is C where `chunk` > 1.
        squash: continuous components are u before a tanh; see `SquashedGaussian`.
        log_std: initial logarithm of the deviations of continuous components.
    """

    def __init__(
        self, action: ActionSpec, *, chunk: int = 1, squash: bool = False, log_std: float = 0.0
    ) -> None:
        super().__init__()
        self.chunk, self._shape = chunk, action.shape
        self._dtype = torch.float32 if action.row_dtype == "float32" else torch.int64
        self.parts = nn.ModuleList(
            _distribution(part, chunk=chunk, squash=squash, log_std=log_std)
            for part in parts_of_one(action, chunk)
        )
        self._widths = [part.outputs for part in self._distributions()]
        self._sizes = [part.size for part in self._distributions()]
        self.outputs = chunk * sum(self._widths)
        """Numbers that the policy's last layer has to give for each entry."""

    def sample(self, output: Tensor, rng: np.random.Generator) -> Tensor:
        """Samples [N, *shape] in the row's dtype, for outputs [N, outputs]."""
        return self._row([part.sample(out, rng) for part, out in self._with_outputs(output)])

    def mode(self, output: Tensor) -> Tensor:
        """The most likely actions [N, *shape] in the row's dtype."""
        return self._row([part.mode(out) for part, out in self._with_outputs(output)])

    def logp_parts(self, output: Tensor, action: Tensor) -> Tensor:
        """Log-probs [N, C], one for each action of the chunk, of `action` [N, *shape]."""
        return _sum([part.logp(out, entry) for part, out, entry in self._split(output, action)])

    def entropy_parts(self, output: Tensor, action: Tensor) -> Tensor:
        """Entropies [N, C]; where squashed, estimated with `action` as the sample."""
        return _sum([part.entropy(out, entry) for part, out, entry in self._split(output, action)])

    def logp(self, output: Tensor, action: Tensor, executed: Tensor | None = None) -> Tensor:
        """Log-probs [N] of the first `executed` [N] int64 actions of each chunk; None: of all."""
        return executed_sum(self.logp_parts(output, action), executed)

    def entropy(self, output: Tensor, action: Tensor, executed: Tensor | None = None) -> Tensor:
        """Entropies [N] over the first `executed` [N] int64 actions of each chunk; None: all."""
        return executed_sum(self.entropy_parts(output, action), executed)

    def _split(self, output: Tensor, action: Tensor) -> list[tuple[Distribution, Tensor, Tensor]]:
        joined = action.reshape(len(output), self.chunk, -1).float()
        entries = torch.split(joined, self._sizes, dim=-1)
        pairs = zip(self._with_outputs(output), entries, strict=True)
        return [(part, out, entry) for (part, out), entry in pairs]

    def _with_outputs(self, output: Tensor) -> list[tuple[Distribution, Tensor]]:
        joined = output.reshape(len(output), self.chunk, -1)
        outputs = torch.split(joined, self._widths, dim=-1)
        return list(zip(self._distributions(), outputs, strict=True))

    def _distributions(self) -> list[Distribution]:
        return [cast("Distribution", part) for part in self.parts]

    def _row(self, actions: list[Tensor]) -> Tensor:
        joined = actions[0] if len(actions) == 1 else torch.cat(actions, dim=-1)
        return joined.to(self._dtype).reshape(-1, *self._shape)


def executed_sum(parts: Tensor, executed: Tensor | None) -> Tensor:
    """Sums [N] of `parts` [N, C] over the first `executed` [N] of each entry; None: over all."""
    if executed is None:
        return parts.sum(dim=1)
    index = torch.arange(parts.shape[1], device=parts.device)
    zero = torch.zeros((), dtype=parts.dtype, device=parts.device)
    return torch.where(index < executed.unsqueeze(1), parts, zero).sum(dim=1)


def parts_of_one(action: ActionSpec, chunk: int) -> list[ActionSpec]:
    """The parts of one simulator step's action: of a mixed one its parts, else itself."""
    if action.kind == "mixed":
        return [part.spec for part in action.parts]
    if chunk == 1:
        return [action]
    size = math.prod(action.shape[1:])
    return [replace(action, shape=action.shape[1:], counts=action.counts[:size])]


def _distribution(spec: ActionSpec, *, chunk: int, squash: bool, log_std: float) -> Distribution:
    size = math.prod(spec.shape)
    if spec.kind == "continuous":
        gaussian = SquashedGaussian if squash else DiagonalGaussian
        return gaussian(size, chunk=chunk, log_std=log_std)
    if spec.kind == "discrete":
        return Categorical([spec.count] * size)
    if spec.kind == "multi_discrete":
        return Categorical(spec.counts)
    assert spec.kind == "multi_binary", spec.kind
    return Bernoulli(size)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _log_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), accurate for large |u| too."""
    return 2.0 * (_LOG_2 - u - functional.softplus(-2.0 * u))
