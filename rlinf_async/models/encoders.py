"""Encoders in torch: from named observations to one vector of features.

Axes: N entries, F features. What each observation becomes is decided in `observations`. Weights are
orthogonal with gain sqrt(2), biases 0, as in the built-in MLPs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from rlinf_async.execution.spaces import ArraySpec
from rlinf_async.models.observations import image_layout, kind_of
from rlinf_async.models.policies import HIDDEN_GAIN

Observation = Mapping[str, Tensor]


class NumberEncoder(nn.Module):
    """Any array, flattened; integers become sign(x) log(1 + |x|)."""

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.features = math.prod(spec.shape)
        self._compress = not spec.dtype.startswith("float") and spec.dtype != "bool"

    def forward(self, rows: Tensor) -> Tensor:
        """[N, *shape] to [N, F] float32."""
        numbers = rows.flatten(1).float() if rows.ndim > 1 else rows.float().unsqueeze(1)
        return numbers.sign() * numbers.abs().log1p() if self._compress else numbers


class ChoiceEncoder(nn.Module):
    """Integers of known ranges: an embedding of each, side by side; or bits, where all are such."""

    def __init__(self, spec: ArraySpec, *, width: int) -> None:
        super().__init__()
        starts = torch.tensor(spec.starts or (0,) * len(spec.counts))
        self.table: nn.Embedding | None = None
        if all(count == 2 for count in spec.counts):
            offsets, self.features = -starts, len(spec.counts)
        else:
            firsts = torch.tensor((0, *spec.counts[:-1])).cumsum(0)
            offsets, self.features = firsts - starts, width * len(spec.counts)
            self.table = nn.Embedding(sum(spec.counts), width)
        self.register_buffer("_offsets", offsets, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """[N, *shape] to [N, F] float32."""
        index = rows.reshape(len(rows), -1).long() + cast("Tensor", self._offsets)
        return index.float() if self.table is None else self.table(index).flatten(1)


class TextEncoder(nn.Module):
    """The mean of the embeddings of a text's bytes; bytes that are 0 count for nothing."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.features = width
        self.table = nn.Embedding(256, width)

    def forward(self, rows: Tensor) -> Tensor:
        """[N, L] bytes to [N, F] float32; 0 for an empty text."""
        is_text = (rows != 0).unsqueeze(-1)
        total = torch.where(is_text, self.table(rows.long()), 0.0).sum(dim=1)
        return total / is_text.sum(dim=1).clamp(min=1)


class ImageEncoder(nn.Module):
    """Convolutions and one linear layer with ReLU, in either channel order, for stacks too.

    Bytes are scaled to 0..1, floats are taken as they are.
    """

    def __init__(self, spec: ArraySpec, *, channels: int, features: int) -> None:
        super().__init__()
        self._layout = layout = image_layout(spec)
        self._shape = spec.shape if len(spec.shape) > 2 else (1, *spec.shape)
        self._bytes = spec.dtype == "uint8"
        self.features = features
        layers: list[nn.Module] = []
        convolutions, planes = layout.convolutions(channels), layout.planes
        for each in convolutions:
            convolution = nn.Conv2d(planes, each.channels, each.kernel, each.stride)
            layers += [orthogonal(convolution, HIDDEN_GAIN), nn.ReLU()]
            planes = each.channels
        rows, columns = layout.output(convolutions)
        last = orthogonal(nn.Linear(planes * rows * columns, features), HIDDEN_GAIN)
        self.layers = nn.Sequential(*layers, nn.Flatten(), last, nn.ReLU())

    def forward(self, rows: Tensor) -> Tensor:
        """[N, *shape] to [N, F] float32."""
        images = rows.reshape(len(rows), -1, *self._shape[-3:])
        if not self._layout.channels_first:
            images = images.movedim(-1, 2)
        # Convolutions of few planes are several times as fast with channels last in memory.
        planes = images.flatten(1, 2).to(torch.float32, memory_format=torch.channels_last)
        encoded: Tensor = self.layers(planes.mul_(1.0 / 255.0) if self._bytes else planes)
        return encoded


class ObservationEncoder(nn.Module):
    """All named observations, each encoded in its way, side by side in their declared order."""

    def __init__(
        self,
        observation: Sequence[ArraySpec],
        *,
        text: Sequence[str] | None,
        embedding: int,
        image_channels: int,
        image_features: int,
    ) -> None:
        super().__init__()
        self._names = [spec.name for spec in observation]
        encoders: list[NumberEncoder | ChoiceEncoder | TextEncoder | ImageEncoder] = []
        for spec in observation:
            kind = kind_of(spec, text)
            if kind == "image":
                encoders.append(
                    ImageEncoder(spec, channels=image_channels, features=image_features)
                )
            elif kind == "text":
                encoders.append(TextEncoder(width=embedding))
            elif kind == "choices":
                encoders.append(ChoiceEncoder(spec, width=embedding))
            else:
                encoders.append(NumberEncoder(spec))
        self.encoders = nn.ModuleList(encoders)
        self.features = sum(encoder.features for encoder in encoders)

    def forward(self, observation: Observation) -> Tensor:
        """Name to [N, *shape], to [N, F] float32."""
        named = zip(self._names, self.encoders, strict=True)
        parts: list[Tensor] = [encoder(observation[name]) for name, encoder in named]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    """The same layer with orthonormal rows (or columns) times `gain`, and biases 0."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None, "made with one"
    nn.init.zeros_(layer.bias)
    return layer
