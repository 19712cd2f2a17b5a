"""`python -m rlinf_async run SCRIPT [options]`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rlinf_async.cli import exits
from rlinf_async.cli.describe import describe_run
from rlinf_async.cli.display import choose
from rlinf_async.cli.ending import exit_code, tell_failure
from rlinf_async.cli.options import parse_options
from rlinf_async.cli.report import root_cause
from rlinf_async.errors import BadInput
from rlinf_async.execution import logs
from rlinf_async.execution.options import RESERVED, EngineOptions, parse_cores
from rlinf_async.execution.run_folder import RunFolder
from rlinf_async.execution.script import find_config, find_main, load_script

log = logs.get_logger()


def command(arguments: Sequence[str]) -> int:
    """Load the script, read the options, run; return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            parse_options("SCRIPT", None, ["--help"])
        raise BadInput("run", "no script", expected="run SCRIPT [options]", fix="see run --help")
    given, *rest = arguments
    if given.startswith("-"):
        raise BadInput("run", f"option {given} before the script", expected="run SCRIPT [options]")
    started = datetime.now().astimezone()
    module = load_script(given)
    script = Path(str(module.__file__))
    main = find_main(module)
    options, config = parse_options(given, find_config(module, reserved=RESERVED), rest)
    parse_cores(options.devices, os.sched_getaffinity(0))
    description = describe_run(
        script, options=options, config=config, arguments=arguments, started=started
    )
    folder = RunFolder.create(options.run_dir, script=script, started=started)
    folder.describe(description)
    logs.configure("controller", folder.logs)
    logs.bind(run=folder.path.name)
    return _execute(main, config, options, folder, script)


def _execute(
    main: Any, config: Any, options: EngineOptions, folder: RunFolder, script: Path
) -> int:
    import rlinf_async.workers  # noqa: F401 - registers who plays which role
    from rlinf_async.execution.session import execute

    log.info("run_started", script=str(script), mode=options.mode, seed=options.seed)
    try:
        execute(main, config, options, folder, choose(options.progress))
    except BaseException as error:
        code = exit_code(error)
        log.error("run_ended", exit_code=code, error=repr(root_cause(error)[0]))
        tell_failure(error, code, folder, script)
        return code
    log.info("run_ended", exit_code=exits.OK)
    _finish(folder, curve=options.curve)
    return exits.OK


def _finish(folder: RunFolder, *, curve: bool) -> None:
    print(f"metrics:    {folder.metrics}")
    if curve:
        print(f"curve:      {_draw(folder)}")
    if folder.checkpoint.is_dir():
        print(f"checkpoint: {folder.checkpoint}")


def _draw(folder: RunFolder) -> str:
    from rlinf_async.cli.plot import draw_learning_curve

    try:
        drawn = draw_learning_curve(folder.metrics, folder.curve)
    except ImportError:
        return "not drawn: matplotlib is not installed (pip install matplotlib)"
    except OSError as error:
        return f"not drawn: {error}"
    return str(folder.curve) if drawn else "not drawn: no metrics were written"
