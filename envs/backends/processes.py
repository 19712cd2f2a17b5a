"""Parts of a cell in processes of their own: `python -m rlinf_async.envs.backends.child`.

Calls and answers are records of plain values with arrays beside them as raw bytes; nothing is
pickled. A child ends with its parent; the parent notices a child's end at once, and names slot and
step of an environment that dies or hangs from a board in memory that the child wrote.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from rlinf_async.envs.chunks import Substep
from rlinf_async.envs.contract import EnvCannotRestore, Observation, State
from rlinf_async.envs.slots import Slots
from rlinf_async.errors import BadInput, EngineError, describe_exit
from rlinf_async.execution.references import SCRIPT_MODULE
from rlinf_async.hardware.activity import BOARD_VARIABLE, BoardFile

Arrays = dict[str, npt.NDArray[Any]]

LEAST_DEADLINE_S = 60.0
DEADLINE_OVER_SLOWEST = 20.0
"""A call may take so many times the slowest one so far before the child is taken for stuck."""
_END_S = 5.0
_KINDS: dict[str, type[Exception]] = {"BadInput": BadInput, "EnvCannotRestore": EnvCannotRestore}


class EnvProcessFailed(EngineError):
    """An environment in a process of its own raised, died or hung."""


class ProcessPart:
    """A cell of some slots in a child process."""

    def __init__(self, request: dict[str, Any], count: int, first_slot: int, name: str) -> None:
        """`request` is an `EnvRequest` as JSON, for the loop."""
        self._name, self._first_slot, self._count = name, first_slot, count
        self._board = BoardFile(f"slots-{first_slot}")
        ours, theirs = socket.socketpair()
        environment = os.environ | {BOARD_VARIABLE: str(self._board.descriptor)}
        command = [sys.executable, "-m", "rlinf_async.envs.backends.child", str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), _script()],
            pass_fds=(theirs.fileno(), self._board.descriptor),
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        self._pipe = Connection(ours.detach())
        self._slowest_s = 0.0
        self._owes = False
        told = {"request": request, "count": count, "first_slot": first_slot}
        self._ask("open", told, {})

    def opened(self) -> dict[str, Any]:
        """`spaces` as JSON, `time_limit` and `tasks`, once the environments are built."""
        told, _ = self._take()
        return told

    def ask_begin(self, slots: Slots, seeds: Sequence[int]) -> None:
        """See `Part`."""
        # Seeds have 64 bits, and orjson writes such.
        self._ask("begin", {"seeds": [int(seed) for seed in seeds]}, {"slots": slots})

    def take_begin(self) -> Observation:
        """See `Part`."""
        return self._take()[1]

    def ask_advance(self, actions: npt.NDArray[Any], slots: Slots) -> None:
        """See `Part`."""
        self._ask("advance", {}, {"actions": actions, "slots": slots})

    def take_advance(self) -> tuple[Substep, Observation]:
        """See `Part`."""
        _, arrays = self._take()
        part = Substep(
            arrays.pop("reward"),
            arrays.pop("terminated"),
            arrays.pop("truncated"),
            arrays.pop("success", None),
        )
        return part, {name.removeprefix("obs/"): rows for name, rows in arrays.items()}

    def save_state(self) -> State:
        """See `Part`."""
        self._ask("save_state", {}, {})
        return self._take()[1]

    def restore_state(self, state: State) -> Observation:
        """See `Part`."""
        self._ask("restore_state", {}, state)
        return self._take()[1]

    def close(self) -> None:
        """See `Part`."""
        if self._pipe.closed:
            return
        try:
            # Whoever still owes an answer is in the middle of something, perhaps for ever.
            if self._process.poll() is None and not self._owes:
                send(self._pipe, {"call": "close"}, {})
                self._process.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._board.close()

    def _ask(self, call: str, told: dict[str, Any], arrays: Arrays) -> None:
        try:
            send(self._pipe, {"call": call, **told}, arrays)
        except OSError as cause:
            raise self._died() from cause
        self._owes = True

    def _take(self) -> tuple[dict[str, Any], Arrays]:
        limit_s = max(LEAST_DEADLINE_S, DEADLINE_OVER_SLOWEST * self._slowest_s)
        try:
            if not self._pipe.poll(limit_s):
                raise EnvProcessFailed(
                    f"{self._where()}: gave up after {limit_s:g} s waiting for {self._doing()}"
                )
            told, arrays = receive(self._pipe)
        except (EOFError, OSError) as cause:
            raise self._died() from cause
        self._owes = False
        self._slowest_s = max(self._slowest_s, told["took_s"])
        if "raised" in told:
            raise self._raised(told["raised"])
        return told, arrays

    def _raised(self, told: dict[str, str]) -> Exception:
        kind = _KINDS.get(told["kind"])
        if kind is BadInput:
            return BadInput.relayed(told["message"])
        if kind is not None:
            return kind(told["message"])
        error = EnvProcessFailed(f"{self._where()}: {told['kind']}: {told['message']}")
        error.add_note(f"traceback in the environment's process:\n{told['traceback']}")
        return error

    def _died(self) -> EnvProcessFailed:
        doing = self._doing()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return EnvProcessFailed(f"{self._where()}: closed its pipe during {doing}")
        return EnvProcessFailed(
            f"{self._where()}: its process {describe_exit(code)} during {doing}"
        )

    def _doing(self) -> str:
        busy = self._board.board.doing()
        return str(busy[0]) if busy else "nothing that an environment does"

    def _where(self) -> str:
        last = self._first_slot + self._count - 1
        return f"{self._name}, slots {self._first_slot} to {last}"


def _script() -> str:
    """The user's script, where this process has imported it: factories may live there."""
    return str(getattr(sys.modules.get(SCRIPT_MODULE), "__file__", None) or "")


def send(pipe: Connection, told: dict[str, Any], arrays: Arrays) -> None:
    """One record and its arrays."""
    layout = [[name, rows.dtype.str, list(rows.shape)] for name, rows in arrays.items()]
    pipe.send_bytes(orjson.dumps({**told, "arrays": layout}))
    for rows in arrays.values():
        pipe.send_bytes(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def receive(pipe: Connection) -> tuple[dict[str, Any], Arrays]:
    """The inverse of `send`; EOFError where the other side is gone."""
    told = orjson.loads(pipe.recv_bytes())
    arrays = {}
    for name, dtype, shape in told.pop("arrays"):
        data = pipe.recv_bytes()
        arrays[name] = np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
    return told, arrays
