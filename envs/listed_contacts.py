"""Models of one robot, without MuJoCo's search for what may touch.

At every evaluation MuJoCo sorts the bodies along an axis to find pairs of geoms that may touch, and
looks for islands of constraints. For one kinematic tree with few geoms the answers are known when
the model is compiled: a short list of pairs, one island. Such a model steps in less time, with the
same bits.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

CONTACT_FIELDS = frozenset(
    f"geom_{name}"
    for name in (
        "conaffinity",
        "condim",
        "contype",
        "friction",
        "gap",
        "margin",
        "priority",
        "solimp",
        "solmix",
        "solref",
    )
)
"""What a contact takes from its geoms; in models of this kind it is settled by the compiler."""

_ALIKE = ("priority", "solimp", "solmix", "solref")


def compile_with_listed_contacts(path: Path) -> Any:
    """The MjModel of an XML file, its contacts listed as pairs; ValueError where it has others."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(path))
    plain = spec.compile()
    pairs = _touching(plain)
    _check(plain, pairs)
    for number, geom in enumerate(spec.geoms):
        geom.name = geom.name or f"geom_{number}"
        geom.contype = geom.conaffinity = 0
    for one, other in pairs:
        spec.add_pair(geomname1=spec.geoms[one].name, geomname2=spec.geoms[other].name)
    model = spec.compile()
    _mix(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    return model


def _touching(model: Any) -> list[tuple[int, int]]:
    """Pairs of geoms that pass MuJoCo's filters: other bodies, no parent, matching masks."""
    weld, found = model.body_weldid[model.geom_bodyid], []
    for one, other in itertools.combinations(range(model.ngeom), 2):
        masks = model.geom_contype[one] & model.geom_conaffinity[other]
        masks |= model.geom_contype[other] & model.geom_conaffinity[one]
        if masks and weld[one] != weld[other] and not _is_parent(model, weld[one], weld[other]):
            found.append((one, other))
    return found


def _is_parent(model: Any, one: int, other: int) -> bool:
    """Whether one of two moving bodies hangs on the other."""
    if not (one and other):
        return False
    above = model.body_weldid[model.body_parentid[[one, other]]]
    return bool(above[0] == other or above[1] == one)


def _check(model: Any, pairs: list[tuple[int, int]]) -> None:
    if model.ntree != 1 or model.npair or model.nexclude or model.neq or model.nflex:
        raise ValueError("listed_contacts: the model is not one kinematic tree and no more")
    used = sorted({geom for pair in pairs for geom in pair})
    for name in _ALIKE:
        if len(used) and np.ptp(getattr(model, f"geom_{name}")[used], axis=0).any():
            raise ValueError(f"listed_contacts: geoms differ in {name}")


def _mix(model: Any) -> None:
    """Give each pair what MuJoCo would have made of its two geoms at every contact."""
    one, other = model.pair_geom1, model.pair_geom2
    model.pair_margin[:] = model.geom_margin[one] + model.geom_margin[other]
    model.pair_gap[:] = model.geom_gap[one] + model.geom_gap[other]
    model.pair_dim[:] = np.maximum(model.geom_condim[one], model.geom_condim[other])
    model.pair_solref[:] = model.geom_solref[one]
    model.pair_solimp[:] = model.geom_solimp[one]
    friction = np.maximum(model.geom_friction[one], model.geom_friction[other])
    # Sliding along both tangents, spinning, rolling about both tangents.
    model.pair_friction[:] = friction[:, [0, 0, 1, 2, 2]]
