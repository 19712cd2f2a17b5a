"""From what a script names, an id or a factory, to the environments of a cell."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_async.envs.backends.choice import open_cell
from rlinf_async.envs.batched import BatchedCell
from rlinf_async.envs.contract import CellEnvs
from rlinf_async.envs.guarded import GuardedCell
from rlinf_async.envs.mujoco_log import log_to_stderr_only
from rlinf_async.envs.request import EnvName, EnvRequest
from rlinf_async.envs.rules import BatchedTask
from rlinf_async.envs.suites import is_suite_id, suite_factory
from rlinf_async.envs.tasks import BATCHED_IDS, batched_task
from rlinf_async.envs.wrappers.by_name import GymnasiumWrapper
from rlinf_async.errors import BadInput, nearest
from rlinf_async.execution import references
from rlinf_async.execution.spaces import chunked

if TYPE_CHECKING:
    from rlinf_async.envs.filming import GymnasiumCamera
    from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
    from rlinf_async.envs.rendering.pixels import Drawer
    from rlinf_async.envs.vector_adapter import VectorCell

_INSTALL = "pip install 'rlinf_async[mujoco]'"


def make_cell(
    env: EnvName,
    count: int,
    *,
    first_slot: int = 0,
    camera: GymnasiumCamera | None = None,
    drawer: Drawer | None = None,
) -> CellEnvs:
    """The `count` environments of one cell.

    Args:
        env: an id, the description of a factory, or an `EnvRequest` as JSON.
        first_slot: the cell's first number within the run, for error messages.
        camera: what is to film the environments; they are Gymnasium's own then.
        drawer: what draws images that are asked for; None: a renderer of this thread.

    Raises:
        BadInput: the environment is unknown, not installed, cannot be built, has spaces that are
            not supported, or a wrapper does not fit it.
    """
    if count < 1:
        raise BadInput("environment", "a cell needs at least one slot", got=count)
    request = EnvRequest.from_json(env)
    wrappers = [_wrapper(each) for each in request.wrappers]
    named = [each for each in wrappers if isinstance(each, GymnasiumWrapper)]
    cell = _open(request, named, count, first_slot, camera)
    try:
        if request.pixels is not None:
            cell = _with_pixels(cell, request, drawer)
        for each in wrappers:
            if not isinstance(each, GymnasiumWrapper):
                cell = each.around(cell)
        if request.checks and _path(cell) == "batched":
            # The others look after each environment by itself.
            cell = GuardedCell(cell, name=_name_of(request), first_slot=first_slot)
    except BaseException:
        cell.close()
        raise
    return cell


def describe_env(env: EnvName) -> dict[str, Any]:
    """Build one environment and tell, in values that orjson can write, what it is.

    Keys: `spaces` (`Spaces.to_json()`, its action that of a whole chunk), `path` ("batched" or
    "gymnasium"), `time_limit` (steps, or None where there is none or it is the environment's own),
    `gl` (the OpenGL backend that drew it, or None), `drawing` (what a draw worker must be told of a
    slot: see `drawing_fields`; None where images are drawn beside the simulations).
    """
    request = EnvRequest.from_json(env)
    chunk = request.chunk
    cell = make_cell(env, 1)
    try:
        action = chunked(cell.spaces.action, chunk)
        spaces = dataclasses.replace(cell.spaces, action=action, chunk=chunk)
        return {
            "spaces": spaces.to_json(),
            "path": _path(cell),
            "time_limit": cell.time_limit,
            "gl": None if request.pixels is None else os.environ.get("MUJOCO_GL"),
            "drawing": None if request.pixels is None else _drawing_of(cell),
        }
    finally:
        cell.close()


def _drawing_of(cell: Any) -> list[dict[str, Any]] | None:
    from rlinf_async.envs.rendering.apart import drawing_fields

    return drawing_fields(cell)


def _path(cell: Any) -> str:
    while hasattr(cell, "inner"):
        cell = cell.inner
    return "batched" if isinstance(cell, BatchedCell) else "gymnasium"


def _name_of(request: EnvRequest) -> str:
    if isinstance(request.env, str):
        return request.env
    target = references.rebuild(request.env, where="environment")
    if isinstance(target, BatchedTask):
        return target.name
    function = target.func if isinstance(target, functools.partial) else target
    return str(getattr(function, "__qualname__", repr(function)))


def _with_pixels(cell: CellEnvs, request: EnvRequest, drawer: Drawer | None) -> CellEnvs:
    from rlinf_async.envs.rendering.pixels import Pixels, with_pixels

    pixels = references.rebuild(request.pixels, where="pixels")
    if not isinstance(pixels, Pixels):
        raise BadInput("pixels", "not understood", expected="Pixels(...)", got=pixels)
    drawn: CellEnvs = with_pixels(cell, pixels, name=_name_of(request), drawer=drawer)
    return drawn


def _wrapper(described: Any) -> Any:
    """A wrapper from its description; a bare name is a wrapper of Gymnasium."""
    if isinstance(described, str):
        return GymnasiumWrapper(name=described)
    wrapper = references.rebuild(described, where="wrapper")
    if not isinstance(wrapper, GymnasiumWrapper) and not hasattr(wrapper, "around"):
        raise BadInput(
            "wrapper",
            "it wraps no cell",
            expected="one of rlinf_async.envs.wrappers, or the name of one of Gymnasium's",
            got=f"a {type(wrapper).__name__}",
        )
    return wrapper


def _open(
    request: EnvRequest,
    named: Sequence[GymnasiumWrapper],
    count: int,
    first_slot: int,
    camera: GymnasiumCamera | None,
) -> CellEnvs:
    """The environments without our wrappers; with Gymnasium's they are never stepped in batch."""
    name = _name_of(request)
    task = _task_of(request)
    if task is not None and not named and camera is None:
        return _batched(_limited(task, request.time_limit), count)
    if task is not None and not isinstance(request.env, str) and named:
        raise BadInput(
            f"environment {name!r}",
            f"{named[0].name} wraps single environments, and this task is a batch",
            fix="use a wrapper of rlinf_async.envs.wrappers",
        )
    if task is not None and not isinstance(request.env, str):
        return _batched(_limited(task, request.time_limit), count)

    def make_local(slots: int, first: int) -> Any:
        factory = _factory_of(request, first, named)
        if camera is not None:
            factory = camera.watching(factory, name)
        for each in named:
            factory = each.applied(factory)
        return _gymnasium(factory, slots, name, first, checks=request.checks)

    # What is drawn or filmed, and vectors, must be in this process and on this thread.
    here = camera is not None or request.pixels is not None
    if here or _makes_vectors(_factory_of(request, first_slot, named)):
        opened: CellEnvs = make_local(count, first_slot)
    else:
        opened = open_cell(request, make_local, count, first_slot, name)
    return opened


def _task_of(request: EnvRequest) -> BatchedTask | None:
    """The batched task that is asked for; None for all else."""
    if isinstance(request.env, str):
        return batched_task(request.env) if request.env in BATCHED_IDS else None
    target = references.rebuild(request.env, where="environment")
    return target if isinstance(target, BatchedTask) else None


def _factory_of(
    request: EnvRequest, first_slot: int, named: Sequence[GymnasiumWrapper]
) -> Callable[..., Any]:
    """What makes single environments, slot by slot from `first_slot` on, or a vector of them."""
    env = request.env
    if isinstance(env, str):
        if is_suite_id(env):
            return _limited_factory(suite_factory(env, first_slot), request.time_limit)
        return _id_factory(env, request.time_limit)
    target = references.rebuild(env, where="environment")
    if not callable(target):
        raise BadInput(
            "environment",
            "it is neither an id nor a factory",
            expected="a Gymnasium id, a BatchedTask, or a function or class of one Env",
            got=f"a {type(target).__name__}",
        )
    if _makes_vectors(target) and (named or request.time_limit is not None):
        raise BadInput(
            f"environment {_name_of(request)!r}",
            "it is a vector environment, which wrappers and time limits of single ones do not fit",
            fix="wrap it, or limit its episodes, inside the factory",
        )
    return _limited_factory(target, request.time_limit)


def _limited(task: BatchedTask, time_limit: int | None) -> BatchedTask:
    return task if time_limit is None else dataclasses.replace(task, time_limit=time_limit)


def _limited_factory(factory: Callable[..., Any], time_limit: int | None) -> Callable[..., Any]:
    if time_limit is None:
        return factory

    def make(**arguments: Any) -> Any:
        from gymnasium.wrappers import TimeLimit

        return TimeLimit(factory(**arguments), time_limit)

    return make


def _batched(task: BatchedTask, count: int) -> BatchedCell:
    try:
        return BatchedCell(task, count)
    except ModuleNotFoundError as cause:
        raise _not_installed(task.name, cause) from cause
    except (OSError, ValueError) as cause:
        raise BadInput(
            f"environment {task.name!r}", f"its model cannot be built: {cause}"
        ) from cause


def _gymnasium(
    factory: Callable[..., Any], count: int, name: str, first_slot: int, *, checks: bool
) -> GymnasiumCell | VectorCell:
    try:
        from rlinf_async.envs.gymnasium_adapter import GymnasiumCell
    except ModuleNotFoundError as cause:
        raise _not_installed(name, cause) from cause
    if not _makes_vectors(factory):
        return GymnasiumCell(factory, count, name=name, first_slot=first_slot, checks=checks)
    # Needs a newer Gymnasium than single environments do.
    from rlinf_async.envs.vector_adapter import VectorCell

    return VectorCell(factory, count, name=name, first_slot=first_slot, checks=checks)


def _makes_vectors(factory: Callable[..., Any]) -> bool:
    """Whether a factory takes the number of slots, as `gymnasium.make_vec` does."""
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _id_factory(env_id: str, time_limit: int | None = None) -> Callable[..., Any]:
    """A function that makes the environment of a Gymnasium id, which may begin with `module:`."""
    try:
        import gymnasium
    except ModuleNotFoundError as cause:
        hint = nearest(env_id, BATCHED_IDS)
        raise _not_installed(env_id, cause, hint) from cause
    module, _, name = env_id.rpartition(":")
    if module:
        _import_registering(module, env_id)
    if name not in gymnasium.registry:
        known = {*BATCHED_IDS, *_latest_versions(gymnasium.registry)}
        raise BadInput(
            f"environment {env_id!r}",
            "no environment of this id is registered",
            fix=nearest(name, known)
            or "an id that a package registers is written 'module:Name-v0', so that it is imported",
        )
    if "mujoco" in str(gymnasium.registry[name].entry_point):
        _quiet_mujoco(env_id)
    return functools.partial(_make, gymnasium, name, time_limit)


def _make(gymnasium: Any, name: str, time_limit: int | None, **more: Any) -> Any:
    try:
        # Its checker warns where we check and name the slot.
        return gymnasium.make(name, disable_env_checker=True, max_episode_steps=time_limit, **more)
    except gymnasium.error.DependencyNotInstalled as cause:
        raise BadInput(f"environment {name!r}", f"a package is missing: {cause}") from cause


def _import_registering(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as cause:
        raise BadInput(
            f"environment {env_id!r}",
            f"module {module!r} cannot be imported: {type(cause).__name__}: {cause}",
        ) from cause


def _quiet_mujoco(env_id: str) -> None:
    try:
        log_to_stderr_only()
    except ModuleNotFoundError as cause:
        raise _not_installed(env_id, cause) from cause


def _latest_versions(ids: Iterable[str]) -> list[str]:
    """Of each name only the newest version; older ones are mostly moved or gone."""
    newest: dict[str, tuple[int, str]] = {}
    for env_id in ids:
        found = re.fullmatch(r"(.+)-v(\d+)", env_id)
        name, version = (found[1], int(found[2])) if found else (env_id, 0)
        newest[name] = max(newest.get(name, (-1, "")), (version, env_id))
    return [env_id for _, env_id in newest.values()]


def _not_installed(name: str, cause: ModuleNotFoundError, hint: str = "") -> BadInput:
    fix = f"{_INSTALL}; {hint}" if hint else _INSTALL
    return BadInput(f"environment {name!r}", f"module {cause.name!r} is not installed", fix=fix)
