"""Smaller and colourless images, in numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs
from rlinf_async.envs.wrappers.frames import stacking_axis
from rlinf_async.envs.wrappers.observations import Changed, changed_one, spec_of
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import ArraySpec

Images = npt.NDArray[np.uint8]
_LUMA = np.array([0.2125, 0.7154, 0.0721])
"""Weights of red, green and blue in the brightness (ITU-R BT.709), as Gymnasium has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grayscale:
    """The brightness of a colour image; the channel axis stays, with one channel."""

    name: str = "image"

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        spec, axis = _image(cell, self.name, "Grayscale")
        if spec.shape[axis] != 3:
            raise BadInput("Grayscale", "channels", expected=3, got=spec.shape[axis])
        shape = tuple(1 if i == axis else size for i, size in enumerate(spec.shape))

        def change(images: Images) -> Any:
            red, green, blue = np.moveaxis(images, axis + 1, 0)
            gray = red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]
            return np.expand_dims(gray.astype(np.uint8), axis + 1)

        return Changed(cell, *changed_one(cell, replace(spec, shape=shape), change))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An image of other height and width: each pixel is the mean of the area that it covers."""

    height: int
    width: int
    name: str = "image"

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise BadInput("Resize", "size", expected=">= 1", got=(self.height, self.width))

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        spec, axis = _image(cell, self.name, "Resize")
        rows, columns = (0, 1) if axis == 2 else (1, 2)
        shape = list(spec.shape)
        down = _area_weights(shape[rows], self.height)
        across = _area_weights(shape[columns], self.width)
        shape[rows], shape[columns] = self.height, self.width

        def change(images: Images) -> Any:
            tall = np.moveaxis(np.tensordot(down, images, axes=(1, rows + 1)), 0, rows + 1)
            both = np.moveaxis(np.tensordot(across, tall, axes=(1, columns + 1)), 0, columns + 1)
            return np.rint(both).astype(np.uint8)

        return Changed(cell, *changed_one(cell, replace(spec, shape=tuple(shape)), change))


def _image(cell: CellEnvs, name: str, who: str) -> tuple[ArraySpec, int]:
    """The image's spec and the axis of its channels."""
    spec = spec_of(cell, name, who)
    if len(spec.shape) != 3 or spec.dtype != "uint8":
        raise BadInput(
            who, f"{name!r} is no image", expected="uint8 with three axes", got=spec.shape
        )
    return spec, stacking_axis(spec.shape)


def _area_weights(size: int, wanted: int) -> npt.NDArray[np.float32]:
    """[wanted, size]: how much of each old pixel lies in each new one; rows add up to 1."""
    edges = np.linspace(0.0, size, wanted + 1)
    old = np.arange(size)
    low = np.maximum(edges[:-1, None], old[None, :])
    high = np.minimum(edges[1:, None], old[None, :] + 1)
    overlap = np.maximum(0.0, high - low)
    return np.asarray(overlap / overlap.sum(axis=1, keepdims=True), np.float32)
