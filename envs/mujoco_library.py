"""The C library behind MuJoCo's Python bindings, for the few things that these do not offer."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_VERIFIED_VERSION = "4.0.0"


@functools.cache
def library() -> ctypes.CDLL | None:
    """MuJoCo's shared library, loaded already by the bindings; None where it is not beside them."""
    import mujoco

    for path in Path(mujoco.__file__).parent.glob("libmujoco.so*"):
        return ctypes.CDLL(str(path))
    return None


@functools.cache
def stop_clock() -> None:
    """Take away the clock that every stage of every simulation step reads.

    The bindings install it to fill `MjData.timer`, and have no call that leaves none.
    """
    if (loaded := library()) is not None:
        ctypes.c_void_p.in_dll(loaded, "mjcb_time").value = None


class ContactForceCall:
    """`mj_rnePostConstraint` on simulations of a persistent batch where they are, by `mjb_apply`.

    Through the bindings it takes a copy of each MjData, whose solver statistics alone (`solver`, 20
    islands of 200 iterations) are larger than all the rest of such a model.
    """

    def __init__(self, batch: Any) -> None:
        """LookupError where the batch of the C library is not found behind that of the bindings."""
        self._batch, self._native = batch, _native_batch(batch)
        loaded = library()
        if self._native is None or loaded is None:
            raise LookupError("the C library's batch is not reached through these bindings")
        self._apply, self._derive = loaded.mjb_apply, loaded.mj_rnePostConstraint
        # On common calling conventions a function may be given arguments that it does not take:
        # this one ignores the number of the simulation and the user's pointer.
        self._apply.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
        )
        self._function = ctypes.cast(self._derive, ctypes.c_void_p)

    def __call__(self, ids: npt.NDArray[np.int32]) -> None:
        """Derive the forces of `ids`, ascending and contiguous, and refresh their bound fields."""
        if self._apply(self._native, ids.ctypes.data, ids.size, self._function, None, 0):
            raise RuntimeError("mj_rnePostConstraint failed in a simulation")
        # It computes nothing, but copies the bound fields out, which mjb_apply does not.
        self._batch.forward(ids, stage=0)


def _native_batch(batch: Any) -> int | None:
    """The address of the `mjBatch` that the bindings' batch holds; None where it is not there.

    pybind11 keeps the address of its C++ object behind the head of the Python object; that object
    begins with the batch's address, and the batch with its numbers of simulations and of states.
    """
    import mujoco

    loaded = library()
    if loaded is None or mujoco.__version__ != _VERIFIED_VERSION:
        return None
    holder = ctypes.c_void_p.from_address(id(batch._b) + object.__basicsize__).value
    address = ctypes.c_void_p.from_address(holder).value if holder else None
    if address is None:
        return None
    counts = (ctypes.c_int * 2).from_address(address)
    if tuple(counts) != (batch.nsim, batch.nstate):
        return None
    loaded.mjb_state.restype, loaded.mjb_state.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    return address if loaded.mjb_state(address) == batch.state.ctypes.data else None
