"""The draw worker: turns poses in shared rows into images, and what asks it for them."""

from __future__ import annotations

from typing import Any

from rlinf_async.envs.rendering.apart import IMAGES, POSE, open_renderer
from rlinf_async.envs.rendering.poses import Poses
from rlinf_async.envs.rendering.renderer import Images
from rlinf_async.execution.worker import Worker, WorkerContext


class DrawWorker(Worker):
    """Draws the simulations of other hosts, all with one context.

    It is stateless: an image follows from the model, which it builds itself, and from the poses.

    Waits for:    poses of a cell (input).
    Unblocked by: the render worker of the cell, in another host.
    """

    def __init__(self, context: WorkerContext, *, env: Any, pool: str) -> None:
        """`env`: as the render workers get it."""
        super().__init__(context)
        self._pool = pool
        self._renderer = open_renderer(env)

    def draw(self, row: int, count: int) -> None:
        """Draw the first `count` simulations whose poses are in `row` into its images."""
        views = self.context.rows(self._pool, row)
        poses = {
            name.removeprefix(POSE): values[:count]
            for name, values in views.items()
            if name.startswith(POSE)
        }
        with self.context.recorder.span("draw.images", items=count):
            self._renderer.draw_all(poses, views[IMAGES][:count].swapaxes(0, 1))

    def close(self) -> None:
        """Free the context."""
        self._renderer.close()


class RemoteDrawer:
    """Draws one cell's simulations by way of the draw worker, blocking the work thread."""

    def __init__(
        self, context: WorkerContext, cell: int, *, host: str, pool: str, deadline_s: float
    ) -> None:
        """The cell's number is that of its row."""
        self._context, self._cell = context, cell
        self._host, self._pool, self._deadline_s = host, pool, deadline_s

    def draw_all(self, poses: Poses, images: Images) -> None:
        """Draw every row of `poses` into `images` [cameras, m, H, W, 3]."""
        count = images.shape[1]
        views = self._context.rows(self._pool, self._cell)
        for name, values in poses.items():
            views[POSE + name][:count] = values
        arguments = {"row": self._cell, "count": count}
        self._context.ask(self._host, "draw", "draw", arguments, deadline_s=self._deadline_s)
        images[...] = views[IMAGES][:count].swapaxes(0, 1)

    def close(self) -> None:
        """Nothing to free here."""
