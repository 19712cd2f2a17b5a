"""Drawing on MuJoCo's own renderer: one context, one thread, many simulations.

Shadows and multisampling, not pixels, are what drawing costs on a processor, so they are off unless
`quality` is "full".
"""

from __future__ import annotations

import copy
import importlib
import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.rendering.gl import settle, turn
from rlinf_async.envs.rendering.poses import LOOKS, Poses, shapes_of
from rlinf_async.errors import BadInput, nearest

Quality = Literal["fast", "full"]
Images = npt.NDArray[np.uint8]

FREE = "free"
"""The camera of a model that has none: it looks at the whole of it."""
_MOST_GEOMS = 10_000

_shared = threading.local()
"""`open`: the thread's renderers by what they draw, with how many use each."""


class Renderer:
    """Draws images of simulations of one model from their poses.

    The context belongs to the thread that made it. `close` must be called by that thread.

    Args:
        model: an `MjModel`; a copy is drawn, so that looks may differ between simulations.
        cameras: names, or numbers as text; empty for the model's first, or the free camera.
        gl: the backend (see `gl.choose_gl`).
    """

    def __init__(
        self,
        model: Any,
        *,
        height: int,
        width: int,
        cameras: Sequence[str] = (),
        quality: Quality = "fast",
        gl: str,
    ) -> None:
        settle(gl)
        import mujoco

        self._mujoco, self._backend = mujoco, gl
        self._thread = threading.get_ident()
        self._model = copy.deepcopy(model)
        self._data = mujoco.MjData(self._model)
        self.cameras = camera_names(model, cameras)
        self._views = [self._camera(name) for name in self.cameras]
        self._fast = quality == "fast"
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._raw = np.empty((height, width, 3), np.uint8)
        self._context: Any = None
        with turn():
            self._open(height, width)

    def draw(self, poses: Poses, row: int, out: Images) -> None:
        """Draw simulation `row` of `poses` with every camera into `out` [cameras, H, W, 3]."""
        self._check_thread()
        # Whoever drew last in this thread, another renderer or an environment of its own, has
        # made its context the current one.
        self._gl.make_current()
        for name, values in poses.items():
            target = self._model if name in LOOKS else self._data
            getattr(target, name)[...] = values[row]
        for view, image in zip(self._views, out, strict=True):
            self._draw_view(view, image)

    def close(self) -> None:
        """Free the context. May be called twice."""
        if self._context is not None:
            self._check_thread()
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._context = None

    def _draw_view(self, view: Any, image: Images) -> None:
        mujoco, scene = self._mujoco, self._scene
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, self._option, None, view, everything, scene)
        if self._fast:
            for flag in self._dear:
                scene.flags[flag] = 0
        mujoco.mjr_render(self._rect, scene, self._context)
        mujoco.mjr_readPixels(self._raw, None, self._rect, self._context)
        # OpenGL's first row is the lowest one.
        np.copyto(image, self._raw[::-1])

    def _open(self, height: int, width: int) -> None:
        mujoco, visual = self._mujoco, self._model.vis
        visual.global_.offheight, visual.global_.offwidth = height, width
        if self._fast:
            visual.quality.shadowsize = 0
            visual.quality.offsamples = 0
        flags = mujoco.mjtRndFlag
        self._dear = (int(flags.mjRND_SHADOW), int(flags.mjRND_REFLECTION), int(flags.mjRND_SKYBOX))
        # Not `mujoco.GLContext`: that was chosen when mujoco was first imported.
        backend: Any = importlib.import_module(f"mujoco.{self._backend}")
        self._gl = backend.GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(self._model, _MOST_GEOMS)
        self._option = mujoco.MjvOption()

    def _camera(self, name: str) -> Any:
        mujoco, camera = self._mujoco, self._mujoco.MjvCamera()
        if name == FREE:
            mujoco.mjv_defaultFreeCamera(self._model, camera)
            return camera
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = int(name) if name.isdigit() else self._model.camera(name).id
        return camera

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("a renderer draws in the thread that made it; this is another")


def camera_names(model: Any, wanted: Sequence[str]) -> tuple[str, ...]:
    """The cameras to draw; BadInput with the nearest name for one that the model lacks."""
    known = [model.camera(number).name for number in range(model.ncam)]
    if not wanted:
        return (known[0] or "0",) if known else (FREE,)
    numbers = [str(number) for number in range(model.ncam)]
    for name in wanted:
        if name not in (*known, *numbers, FREE):
            raise BadInput(
                "pixels",
                f"the model has no camera {name!r}",
                expected=", ".join((*filter(None, known), FREE)),
                fix=nearest(name, known),
            )
    return tuple(wanted)


class SharedRenderer:
    """A renderer that all cells of a thread share which draw the same model in the same way.

    A context takes tens of megabytes and half a second, and can draw any instance of its model.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        self._key = (shapes_of(model), *sorted(options.items()))
        renderers = _shared.__dict__.setdefault("open", {})
        if self._key not in renderers:
            renderers[self._key] = [Renderer(model, **options), 0]
        renderers[self._key][1] += 1
        self._renderer: Renderer = renderers[self._key][0]
        self.cameras = self._renderer.cameras
        self._closed = False

    def draw(self, poses: Poses, row: int, out: Images) -> None:
        """As `Renderer.draw`."""
        self._renderer.draw(poses, row, out)

    def draw_all(self, poses: Poses, images: Images) -> None:
        """Draw every row of `poses` into `images` [cameras, m, H, W, 3]."""
        for row in range(images.shape[1]):
            self.draw(poses, row, images[:, row])

    def close(self) -> None:
        """Free the context with its last user. May be called twice."""
        if self._closed:
            return
        self._closed = True
        kept = _shared.open[self._key]
        kept[1] -= 1
        if kept[1] == 0:
            del _shared.open[self._key]
            self._renderer.close()
