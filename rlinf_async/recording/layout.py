"""The folder of a recording, version 1: what its files are called and what they hold.

    recording.json           format, version, environment, spaces, frames per second; written first
    episodes/000012/         one complete episode; the number has at least six digits
        steps.npy            [T] structured: one record per step, fields below
        final.npy            [1] structured: the observation after the last step
        images-0.bin         [T + 1] frames of the first image observation, each deflated (zlib)
        images-0.npy         [T + 2] int64: frame t lies in bytes ends[t] to ends[t + 1]
        episode.json         seed, task, instruction, sums, and the size of every other file
    episodes/.draft-*        an episode that is being written, or whose writer was killed

Fields of a step, where C is the steps of one action (`Spaces.chunk`):

    obs/NAME         *shape of the observation that the action was chosen for; images lie apart
    action           *A, as the policy gave it (`ActionSpec.row_dtype`)
    executed_action  *A, as the environment took it: clipped, with its own numbering
    reward           float64, [C] with chunks
    executed         int32, simulator steps that were made, 1 to C
    terminated, truncated, success   bool
    version          int64, of the weights that acted; -1 where nothing has versions

An episode is written beside its place and renamed when it is whole. So a killed writer leaves
complete episodes and a draft, which readers do not see and the next writer removes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.execution.spaces import ArraySpec, Spaces

FORMAT = "rlinf_async.recording"
FORMAT_VERSION = 1

RECORDING_FILE = "recording.json"
EPISODES = "episodes"
EPISODE_FILE = "episode.json"
STEPS_FILE = "steps.npy"
FINAL_FILE = "final.npy"
DRAFT = ".draft-"

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Which observation lies where, and the records of `steps.npy` and `final.npy`."""

    spaces: Spaces

    @property
    def images(self) -> tuple[ArraySpec, ...]:
        """Observations that are stored as deflated frames, in the order of their files."""
        return tuple(spec for spec in self.spaces.observation if is_image(spec))

    @property
    def plain(self) -> tuple[ArraySpec, ...]:
        """Observations that lie in the records themselves."""
        return tuple(spec for spec in self.spaces.observation if not is_image(spec))

    def step_dtype(self) -> np.dtype[Any]:
        """The record of one step."""
        action, chunk = self.spaces.action, self.spaces.chunk
        fields = [
            *self._observation_fields(),
            ("action", action.row_dtype, action.shape),
            ("executed_action", executed_dtype(self.spaces), action.shape),
            ("reward", "float64", (chunk,) if chunk > 1 else ()),
            ("executed", "int32"),
            ("terminated", "bool"),
            ("truncated", "bool"),
            ("success", "bool"),
            ("version", "int64"),
        ]
        return np.dtype(fields, align=True)

    def final_dtype(self) -> np.dtype[Any]:
        """The record of the last observation."""
        return np.dtype(self._observation_fields(), align=True)

    def _observation_fields(self) -> list[Any]:
        return [(f"obs/{spec.name}", spec.dtype, spec.shape) for spec in self.plain]


def is_image(spec: ArraySpec) -> bool:
    """Whether an observation is stored as deflated frames: bytes of two or more axes."""
    return spec.dtype == "uint8" and len(spec.shape) >= 2


def executed_dtype(spaces: Spaces) -> str:
    """The dtype of `executed_action`; mixed actions stay flat and float32, as in a row."""
    action = spaces.action
    return action.row_dtype if action.kind == "mixed" else action.dtype


def episode_folder(number: int) -> str:
    """The name of an episode's folder."""
    return f"{number:06d}"


def npy_header(dtype: np.dtype[Any], count: int) -> bytes:
    """The header of a `.npy` file of `count` records; as long for any count, so it can be redone.

    NumPy's format 1.0, or 3.0 (UTF-8) where a field's name needs it.
    """
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({count},), }}"
    version, width = ((1, 0), 2) if text.isascii() else ((3, 0), 4)
    encoded = text.encode("ascii" if text.isascii() else "utf8")
    digits = len(str(count))
    prefix = 8 + width
    longest = prefix + len(encoded) - digits + 20 + 1
    size = math.ceil(longest / 64) * 64
    body = encoded + b" " * (size - prefix - len(encoded) - 1) + b"\n"
    return bytes(np.lib.format.magic(*version)) + len(body).to_bytes(width, "little") + body
