"""World poses: all that a renderer needs of a simulation, and nothing that it would compute.

A renderer that has the same model and is given these arrays draws the same image bit for bit as one
that looks at the simulation itself. Positions and orientations are those that the last simulation
step has left, as direct rendering sees them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import BadInput

Poses = dict[str, npt.NDArray[Any]]
"""Name to array [m, ...], one row for each simulation."""
Slots = npt.NDArray[np.intp]

ALWAYS = (
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "cam_xpos",
    "cam_xmat",
    "light_xpos",
    "light_xdir",
)
"""Fields of MjData, float64."""
SKINNED = ("xpos", "xquat")
"""Of models with skins."""
FLEXIBLE = ("flexvert_xpos",)
"""Of models with flexes."""
_SHAPES = (
    "geom_type",
    "geom_dataid",
    "geom_matid",
    "mesh_vert",
    "mesh_face",
    "hfield_data",
    "mat_texid",
    "tex_height",
    "tex_width",
)
"""Fields of MjModel that tell one specification from another."""
LOOKS = ("geom_rgba", "geom_size", "site_rgba", "site_size", "mat_rgba", "light_diffuse")
"""Fields of MjModel that a task may change from episode to episode."""


def data_fields(model: Any) -> tuple[str, ...]:
    """The fields of MjData that drawing this model needs; BadInput for what cannot be drawn so."""
    if model.ntendon and (np.asarray(model.tendon_width) > 0).any() and _visible_tendons(model):
        raise BadInput(
            "pixels",
            "the model shows tendons, whose paths are no poses",
            fix="give its tendons rgba='0 0 0 0'",
        )
    skinned = SKINNED if model.nskin else ()
    flexible = FLEXIBLE if model.nflex else ()
    return (*ALWAYS, *skinned, *flexible)


def shapes_of(model: Any) -> bytes:
    """A digest of what a context holds of a model, the same for all instances of one specification.

    Whatever an environment may move or paint when it is reset does not count.
    """
    digest = hashlib.blake2b(bytes(model.names), digest_size=16)
    for field in _SHAPES:
        digest.update(np.asarray(getattr(model, field)).tobytes())
    return digest.digest()


class PoseSource(Protocol):
    """The simulations of a cell, as a renderer sees them."""

    model: Any
    """The MjModel that all of them have, but for `LOOKS`."""

    def poses(self, slots: Slots | None) -> Poses:
        """Poses of `slots` [m, ...] (None: all), by copy."""
        ...


class BatchedPoses:
    """Of the simulations of a `BatchedCell`."""

    def __init__(self, sims: Any) -> None:
        self.model = sims.model
        self._batch = sims.batch
        self._fields = {name: sims.derived(name) for name in data_fields(sims.model)}

    def poses(self, slots: Slots | None) -> Poses:
        """See `PoseSource`."""
        live = dict(self._fields)
        for name in LOOKS:
            if (varied := self._batch.expanded(name)) is not None:
                live[name] = varied
        if slots is None:
            return {name: values.copy() for name, values in live.items()}
        return {name: values[slots] for name, values in live.items()}


class SinglePoses:
    """Of single environments that have a `model` and `data` of MuJoCo, each its own."""

    def __init__(self, envs: Sequence[Any], *, who: str) -> None:
        self._inner = [env.unwrapped for env in envs]
        for inner in self._inner:
            if not (hasattr(inner, "model") and hasattr(inner, "data")):
                raise BadInput(
                    who,
                    "it cannot be drawn: it has no MuJoCo model and data",
                    fix="leave out pixels, or use its own images",
                )
        self.model = self._inner[0].model
        if len({shapes_of(inner.model) for inner in self._inner}) > 1:
            raise BadInput(
                who,
                "environments of one cell that have different models cannot be drawn together",
                fix="use cells of one slot: --cell 1",
            )
        self._fields = data_fields(self.model)

    def poses(self, slots: Slots | None) -> Poses:
        """See `PoseSource`."""
        inner = self._inner if slots is None else [self._inner[slot] for slot in slots.tolist()]
        poses = {name: np.stack([getattr(e.data, name) for e in inner]) for name in self._fields}
        for name in LOOKS:
            poses[name] = np.stack([getattr(each.model, name) for each in inner])
        return poses


def _visible_tendons(model: Any) -> bool:
    return bool((np.asarray(model.tendon_rgba)[:, 3] > 0).any())
