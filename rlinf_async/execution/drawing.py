"""Drawing in a host of its own: its place, the rows of poses and images, and its links.

The render worker of a cell writes poses into the cell's row and asks the draw worker over a direct
link, as a central policy asks render workers; the images come back in the same row.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rlinf_async.communication.fields import Field
from rlinf_async.execution.definitions import Envs
from rlinf_async.execution.roles import role_reference
from rlinf_async.scheduling.placement import HostPlan, Placement

if TYPE_CHECKING:
    from rlinf_async.execution.crew import Crew
    from rlinf_async.execution.run import Run

DRAW = "draw"
"""The role, and the name of the host that plays it."""
POOL = "poses"


def with_draw_host(placement: Placement, envs: Envs) -> Placement:
    """`placement` with a host that draws, where the images of `envs` are to be drawn apart.

    It shares the cores of those that render, which wait for it. In serial mode there is one host.
    """
    if envs.drawing is None:
        return placement
    if placement.mode == "serial":
        note = "images are drawn beside the simulations: serial mode has one process"
        return dataclasses.replace(placement, notes=(*placement.notes, note))
    cores = {core for plan in placement.hosts if "render" in plan.roles for core in plan.cores}
    plan = HostPlan(name=DRAW, cores=tuple(sorted(cores)), roles=(DRAW,), cells=())
    return dataclasses.replace(placement, hosts=(*placement.hosts, plan))


async def open_drawing(run: Run, crew: Crew, envs: Envs) -> dict[str, Any] | None:
    """Build the draw worker, share the rows, and link every render host to it.

    Returns what render workers have to know, or None where images are drawn beside.
    """
    found = crew.with_role(DRAW)
    if not found or envs.drawing is None:
        return None
    limit_s = run.options.start_timeout_s
    draw = found[0][1]
    slots = max(cell.slots for cell in envs.cells)
    fields = [
        Field(name=each["name"], shape=(slots, *each["shape"]), dtype=each["dtype"])
        for each in envs.drawing
    ]
    pool = await crew.make_pool(POOL, fields, rows=len(envs.cells))
    command = {
        "name": DRAW,
        "reference": role_reference(DRAW),
        "arguments": {"env": envs.env, "pool": POOL},
    }
    await draw.call("host", "create", command, deadline_s=limit_s)
    await draw.map_pool(pool)
    for plan, host in crew.with_role("render"):
        address = run.runtime_folder.socket_address(f"draw-{plan.name}")
        await host.map_pool(pool)
        await host.call("link", "listen", {"address": address}, deadline_s=limit_s)
        link = {"address": address, "peer": plan.name}
        await draw.call("link", "connect", link, deadline_s=limit_s)
    return {"host": DRAW, "pool": POOL, "deadline_s": run.options.reply_timeout_s}
