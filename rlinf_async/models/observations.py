"""How a policy reads each named observation, decided from its declaration alone.

    image     bytes with two to four axes, floats with three or four, sides of at least 8 pixels:
              a CNN. Of three axes the channels are the shorter one of the first and the last; a
              fourth, first axis is a stack of frames, whose channels are put one behind the other
    text      bytes with one axis; 0 where the text has ended
    choices   integers whose numbers of values are declared: embeddings, or bits where all are two
    numbers   everything else, flattened: floats as they are, integers compressed to
              sign(x) log(1 + |x|)

This module imports no torch, so that a script's mistakes show before any worker starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec

Kind = Literal["image", "text", "choices", "numbers"]

SMALLEST_SIDE = 8
"""Pixels that the shorter side of an image must have."""

MOST_CHOICES = 65_536
"""Choices of one observation, all components together, above which they count as numbers."""

_FEW_ROWS = 9
"""Layers halve an image until it has at most so many rows and columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One layer with a square kernel and no padding."""

    channels: int
    kernel: int
    stride: int

    def after(self, side: int) -> int:
        """Rows (or columns) that it makes of `side` of them."""
        return (side - self.kernel) // self.stride + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayout:
    """Where frames, rows, columns and channels of an image observation lie."""

    frames: int
    channels: int
    height: int
    width: int
    channels_first: bool
    """[channels, height, width], else [height, width, channels]."""

    @property
    def planes(self) -> int:
        """Input channels of the first layer: those of all frames."""
        return self.frames * self.channels

    def convolutions(self, channels: int) -> list[Convolution]:
        """The layers for this size, the first with so many channels, the others with twice as many.

        For 64 and 84 pixels a side they are those of Mnih et al. (2015).
        """
        sides = (self.height, self.width)
        layers: list[Convolution] = []
        if min(sides) >= 32:
            layers.append(Convolution(channels=channels, kernel=8, stride=4))
        while max(self.output(layers)) > _FEW_ROWS and min(self.output(layers)) >= 8:
            layers.append(Convolution(channels=2 * channels, kernel=4, stride=2))
        layers.append(Convolution(channels=2 * channels, kernel=3, stride=1))
        return layers

    def output(self, layers: Sequence[Convolution]) -> tuple[int, int]:
        """Rows and columns behind these layers."""
        rows, columns = self.height, self.width
        for layer in layers:
            rows, columns = layer.after(rows), layer.after(columns)
        return rows, columns


def kind_of(spec: ArraySpec, text: Sequence[str] | None) -> Kind:
    """How this observation is read; `text` are the names of texts, None for all that may be."""
    axes = len(spec.shape)
    if spec.dtype == "uint8" and axes == 1 and (text is None or spec.name in text):
        return "text"
    if spec.counts and sum(spec.counts) <= MOST_CHOICES:
        return "choices"
    if spec.dtype == "uint8" and axes in (3, 4):
        return "image"
    large = axes >= 2 and min(_sides(spec.shape)) >= SMALLEST_SIDE
    if large and (spec.dtype == "uint8" or (spec.dtype == "float32" and axes in (3, 4))):
        return "image"
    return "numbers"


def image_layout(spec: ArraySpec) -> ImageLayout:
    """The layout of an image of two to four axes; BadInput where it is too small."""
    *stack, first, middle, last = spec.shape if len(spec.shape) > 2 else (1, *spec.shape)
    channels_first = first < last
    channels, height, width = (first, middle, last) if channels_first else (last, first, middle)
    if min(height, width) < SMALLEST_SIDE:
        raise BadInput(
            f"observation {spec.name!r}",
            "the image is too small for a convolutional encoder",
            expected=f"at least {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels",
            got=f"{height} x {width} pixels in shape {list(spec.shape)}",
            fix="render it larger, or flatten it with gymnasium.wrappers.FlattenObservation",
        )
    return ImageLayout(
        frames=math.prod(stack),
        channels=channels,
        height=height,
        width=width,
        channels_first=channels_first,
    )


def check_observations(
    observation: Sequence[ArraySpec], text: Sequence[str] | None, *, who: str
) -> None:
    """BadInput for observations that no encoder can read, and for texts that are none."""
    if not observation or not any(math.prod(spec.shape) for spec in observation):
        raise BadInput(who, "the observations are empty", expected="at least one number")
    for spec in observation:
        if kind_of(spec, text) == "image":
            image_layout(spec)
    known = {spec.name for spec in observation if kind_of(spec, None) == "text"}
    for name in text or ():
        if name not in known:
            raise BadInput(
                who,
                f"text: {name!r} is no observation of bytes",
                expected=f"names among {sorted(known)}",
                got=list(text or ()),
            )


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """The two sides of an image of this shape."""
    if len(shape) == 2:
        return shape[0], shape[1]
    first, middle, last = shape[-3:]
    return (middle, last) if first < last else (first, middle)
