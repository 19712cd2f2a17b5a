"""Wrappers that choose and change observations without remembering anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.envs.contract import CellEnvs, Observation
from rlinf_async.envs.wrappers.wrapped import WrappedCell, with_observation
from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution.spaces import ArraySpec

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectObservations:
    """Keep the named observations only, in this order; `rename` gives some of them other names."""

    names: tuple[str, ...]
    rename: tuple[tuple[str, str], ...] = ()
    """Pairs (old, new)."""

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        called = dict(self.rename)
        if strange := set(called) - set(self.names):
            raise BadInput("SelectObservations", f"renames {sorted(strange)}, not selected")
        specs = [spec_of(cell, name, "SelectObservations") for name in self.names]
        renamed = [replace(spec, name=called.get(spec.name, spec.name)) for spec in specs]
        new_names = [spec.name for spec in renamed]
        if len(set(new_names)) < len(new_names):
            raise BadInput("SelectObservations", "two observations of one name", got=new_names)

        def select(observation: Observation) -> Observation:
            pairs = zip(specs, renamed, strict=True)
            return {new.name: observation[old.name] for old, new in pairs}

        return Changed(cell, renamed, select)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformObservation:
    """A named function of one observation, [m, *shape] to [m, *new shape]."""

    function: Callable[[Rows], Rows]
    name: str = "state"

    def around(self, cell: CellEnvs) -> CellEnvs:
        """See `Wrapper`."""
        old = spec_of(cell, self.name, "TransformObservation")
        probe = self.function(np.zeros((2, *old.shape), old.dtype))
        if not isinstance(probe, np.ndarray) or probe.shape[:1] != (2,):
            raise BadInput(
                "TransformObservation",
                f"the function of {self.name!r} changed the first axis, the slots",
                expected="an array [2, ...] for an array [2, ...]",
                got=getattr(probe, "shape", type(probe)),
            )
        dtype = "float32" if probe.dtype.kind == "f" else probe.dtype.name
        new = ArraySpec(name=self.name, shape=probe.shape[1:], dtype=dtype)
        return Changed(cell, *changed_one(cell, new, self.function))


class Changed(WrappedCell):
    """Observations that are functions of those inside."""

    def __init__(
        self,
        cell: CellEnvs,
        specs: list[ArraySpec],
        change: Callable[[Observation], Observation],
    ) -> None:
        super().__init__(cell, with_observation(cell.spaces, specs))
        self._change = change

    def transform(self, observation: Observation) -> Observation:
        """See `WrappedCell`."""
        return self._change(observation)


def changed_one(
    cell: CellEnvs, new: ArraySpec, function: Callable[[Rows], Rows]
) -> tuple[list[ArraySpec], Callable[[Observation], Observation]]:
    """Specs and function for a cell of whose observations one is changed."""
    specs = [new if spec.name == new.name else spec for spec in cell.spaces.observation]

    def change(observation: Observation) -> Observation:
        rows = function(observation[new.name]).astype(new.dtype, copy=False)
        return {**observation, new.name: rows}

    return specs, change


def spec_of(cell: CellEnvs, name: str, who: str) -> ArraySpec:
    """The observation of that name; BadInput with the nearest one."""
    known = {spec.name: spec for spec in cell.spaces.observation}
    if name not in known:
        raise BadInput(
            who, f"no observation {name!r}", expected=", ".join(known), fix=nearest(name, known)
        )
    return known[name]
