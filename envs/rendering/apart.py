"""What drawing in another process than simulating needs: the rows' fields, and the renderer."""

from __future__ import annotations

from typing import Any

from rlinf_async.envs.rendering.pixels import PixelCell, shared_renderer
from rlinf_async.envs.rendering.poses import Poses
from rlinf_async.envs.rendering.renderer import Images, SharedRenderer

POSE = "pose/"
"""Prefix of the fields that hold poses."""
IMAGES = "images"


def drawing_fields(cell: Any) -> list[dict[str, Any]] | None:
    """Name, shape (of one simulation) and dtype of each field of a row, for orjson.

    `cell` has a `PixelCell` around the environments, perhaps further within. None where it draws
    its images itself.
    """
    pixels = _pixel_cell(cell)
    if pixels.pixels.place == "beside":
        return None
    poses = pixels.source.poses(None)
    fields = [
        {"name": POSE + name, "shape": list(values.shape[1:]), "dtype": str(values.dtype)}
        for name, values in poses.items()
    ]
    shape = list(pixels.images_shape)
    return [*fields, {"name": IMAGES, "shape": shape, "dtype": "uint8"}]


def open_renderer(env: Any) -> SharedRenderer:
    """A renderer of the model that the environments of a request have.

    One environment is built for it and closed again.
    """
    from rlinf_async.envs.registry import make_cell

    cell = make_cell(env, 1, drawer=_Nowhere())
    try:
        pixels = _pixel_cell(cell)
        return shared_renderer(pixels.source.model, pixels.pixels)
    finally:
        cell.close()


class _Nowhere:
    """Takes the place of a renderer where nothing will be drawn."""

    def draw_all(self, poses: Poses, images: Images) -> None:
        """Never called: nobody resets the environment."""
        raise RuntimeError("this cell does not draw")

    def close(self) -> None:
        """Nothing to free."""


def _pixel_cell(cell: Any) -> PixelCell:
    while not isinstance(cell, PixelCell):
        cell = cell.inner
    return cell
