"""The process that some slots of a cell live in: serves calls until its parent says close."""

from __future__ import annotations

import faulthandler
import os
import select
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def serve(pipe: Connection) -> None:
    """Answer calls on `pipe`."""
    from rlinf_async.envs.backends.processes import receive, send

    cell: Any = None
    while True:
        try:
            asked, arrays = receive(pipe)
        except EOFError:
            return
        began_s = time.monotonic()
        try:
            if asked["call"] == "close":
                if cell is not None:
                    cell.close()
                return
            if asked["call"] == "open":
                cell, told, answer = _opened(asked)
            else:
                told, answer = _performed(cell, asked, arrays)
        except Exception as error:
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", []))
            raised = {
                "kind": type(error).__name__,
                "message": f"{error}{notes}",
                "traceback": traceback.format_exc(),
            }
            told, answer = {"raised": raised}, {}
        send(pipe, {**told, "took_s": time.monotonic() - began_s}, answer)


def _opened(asked: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from rlinf_async.envs.registry import make_cell

    cell = make_cell(asked["request"], asked["count"], first_slot=asked["first_slot"])
    told = {"spaces": cell.spaces.to_json(), "time_limit": cell.time_limit, "tasks": cell.tasks}
    return cell, told, {}


def _performed(
    cell: Any, asked: dict[str, Any], arrays: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    from rlinf_async.envs.backends.local import advance_some

    call = asked["call"]
    if call == "begin":
        return {}, cell.begin(arrays["slots"].astype(np.intp), asked["seeds"])
    if call == "save_state":
        return {}, cell.save_state()
    if call == "restore_state":
        return {}, cell.restore_state(arrays)
    part, seen = advance_some(cell, arrays["actions"], arrays["slots"].astype(np.intp))
    answer = {f"obs/{name}": rows for name, rows in seen.items()}
    answer |= {
        "reward": part.reward,
        "terminated": part.terminated,
        "truncated": part.truncated,
    }
    if part.success is not None:
        answer["success"] = part.success
    return {}, answer


def _end_with_parent(parent: int) -> None:
    """A thread of the parent started us, so its death signal is not to be trusted: look."""
    watched = os.pidfd_open(parent)
    select.select([watched], [], [])
    os._exit(1)


def main() -> None:
    """Entry point."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    faulthandler.enable()
    from rlinf_async.execution.script import load_script

    if script := sys.argv[3]:
        load_script(script)
    with Connection(descriptor) as pipe:
        serve(pipe)


if __name__ == "__main__":
    main()
