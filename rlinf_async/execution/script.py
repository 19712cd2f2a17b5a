"""A user's script, loaded in the controller and in every host that needs its classes."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution.references import SCRIPT_MODULE


def load_script(path: Path | str) -> ModuleType:
    """Import the script as `__rlinf_script__`, with its folder importable as `python SCRIPT` does.

    The same file is loaded once per process. Raises BadInput if it is missing or raises; the
    script's own traceback is part of the message.
    """
    script = Path(os.path.abspath(path))
    _check_file(script, given=path)
    loaded = sys.modules.get(SCRIPT_MODULE)
    if loaded is not None and getattr(loaded, "__file__", None) == str(script):
        return loaded
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, script)
    if spec is None or spec.loader is None:
        raise BadInput(str(path), "not a Python script", expected="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and type hints look their module up by name.
    sys.modules[SCRIPT_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:
        del sys.modules[SCRIPT_MODULE]
        what = "the script ended itself" if isinstance(cause, SystemExit) else "the script failed"
        raise BadInput(
            str(path), f"{what} while it was imported:\n{script_traceback(cause, script)}"
        ) from cause
    return module


def find_main(module: ModuleType) -> Any:
    """The script's `async def main(run, cfg)`; BadInput if there is none that can be called so."""
    who, names = str(module.__file__), _own_names(module)
    main = getattr(module, "main", None)
    if main is None:
        raise BadInput(
            who, "has no main", expected="async def main(run, cfg)", fix=nearest("main", names)
        )
    if not inspect.iscoroutinefunction(main):
        raise BadInput(
            who, "main is not a coroutine function", expected="async def main(run, cfg)", got=main
        )
    try:
        inspect.signature(main).bind(None, None)
    except TypeError:
        got = f"main{inspect.signature(main)}"
        raise BadInput(
            who, "main takes other arguments", expected="main(run, cfg)", got=got
        ) from None
    return main


def find_config(module: ModuleType, *, reserved: frozenset[str]) -> type:
    """The script's `Config` dataclass; BadInput if it is missing or uses a reserved field name."""
    who, config = str(module.__file__), getattr(module, "Config", None)
    if config is None:
        raise BadInput(
            who,
            "has no Config",
            expected="a dataclass named Config",
            fix=nearest("Config", _own_names(module)),
        )
    if not (isinstance(config, type) and is_dataclass(config)):
        raise BadInput(
            who, "Config is not a dataclass", got=config, fix="write @dataclass above the class"
        )
    taken = sorted(set(config.__dataclass_fields__) & reserved)
    if taken:
        raise BadInput(
            who,
            f"Config.{taken[0]} has the name of an engine option",
            expected=f"a field not named {', '.join(sorted(reserved))}",
            fix=f"rename it, or read run.options.{taken[0]}",
        )
    return config


def script_traceback(error: BaseException, script: Path) -> str:
    """The traceback of `error` with only the frames of the script's own folder, and its causes.

    All frames are kept where none is the script's, so the reader is never left without a place.
    """
    report = traceback.TracebackException.from_exception(error)
    _trim(report, script.parent)
    return "".join(report.format()).rstrip()


def _trim(report: traceback.TracebackException, folder: Path) -> None:
    own = [frame for frame in report.stack if _is_own(frame.filename, folder)]
    if own:
        report.stack = traceback.StackSummary.from_list(own)
    for linked in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if linked is not None:
            _trim(linked, folder)


def _is_own(filename: str, folder: Path) -> bool:
    path = Path(filename)
    if not path.is_relative_to(folder):
        return False
    below = path.parts[len(folder.parts) :]
    return not {"site-packages", "dist-packages", "rlinf_async"} & set(below)


def _check_file(script: Path, *, given: Path | str) -> None:
    if script.is_dir():
        raise BadInput(str(given), "is a folder", expected="a Python file")
    if not script.exists():
        folder = script.parent
        if not folder.is_dir():
            raise BadInput(str(given), f"there is no folder {folder}")
        near = nearest(script.name, (each.name for each in folder.glob("*.py")))
        raise BadInput(str(given), "there is no such file", fix=near)
    if not os.access(script, os.R_OK):
        raise BadInput(str(given), "cannot be read: no permission")


def _own_names(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if not name.startswith("__")]
