"""Images drawn apart from the simulations are those drawn beside them."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlinf_async.envs.registry import describe_env, make_cell
from rlinf_async.envs.rendering import Pixels
from rlinf_async.envs.rendering.gl import choose_gl
from rlinf_async.envs.tasks.press_button import PRESS_BUTTON
from rlinf_async.errors import BadInput
from rlinf_async.execution.checkpoint import read_checkpoint
from rlinf_async.execution.references import describe
from rlinf_async.tracing.recorder import Recorder
from rlinf_async.workers.draw import DrawWorker, RemoteDrawer

try:
    GL = choose_gl()
except BadInput as missing:
    pytest.skip(str(missing), allow_module_level=True)

N = 3
GL_LIBRARIES = ("libEGL", "libOSMesa")


class MovedReacher(gymnasium.Wrapper):
    """Moves a body and paints a geom of the model itself at each reset, as robot suites do."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Reacher-v5"))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        rng, model = np.random.default_rng(seed), self.unwrapped.model
        model.body_pos[-1, :2] = rng.uniform(-0.1, 0.1, 2)
        model.geom_rgba[-1, :3] = rng.uniform(0, 1, 3)
        return super().reset(seed=seed, options=options)


class Context:
    """One host as its workers see it, with a draw worker that answers at once."""

    def __init__(self, fields: list[dict[str, Any]], slots: int) -> None:
        self.recorder = Recorder("test")
        self.draw: DrawWorker
        self.asked = 0
        self._rows = [
            {each["name"]: np.zeros((slots, *each["shape"]), each["dtype"]) for each in fields}
            for _ in range(2)
        ]

    def rows(self, pool: str, row: int) -> Mapping[str, np.ndarray]:
        assert pool == "poses"
        return self._rows[row]

    def ask(self, host: str, worker: str, method: str, arguments: Any, *, deadline_s: float) -> Any:
        assert (host, worker, method) == ("elsewhere", "draw", "draw")
        self.asked += 1
        return self.draw.draw(**arguments)


def request(env: Any, place: str, **options: Any) -> dict[str, Any]:
    pixels = Pixels(**{"height": 32, "width": 40, "gl": GL, "place": place, **options})
    described = env if isinstance(env, str) else describe(env, where="test")
    return {"env": described, "pixels": describe(pixels, where="test"), "checks": False}


def sampled(cell: Any, steps: int) -> Iterator[np.ndarray]:
    """Images of an episode under random actions, with a chunk at its end."""
    rng, shape = np.random.default_rng(5), cell.spaces.action.shape
    names = [spec.name for spec in cell.spaces.observation]

    def draw(*more: int) -> np.ndarray:
        return rng.uniform(-1, 1, (N, *more, *shape)).astype(np.float32)

    observation = cell.reset([1, 2, 3])
    yield from (observation[name] for name in names)
    for _ in range(steps):
        observation = cell.step(draw(), lambda slot: 9 + slot).observation
        yield from (observation[name] for name in names)
    observation = cell.step(draw(), lambda slot: 9, slots=np.array([1])).observation
    yield from (observation[name] for name in names)
    observation = cell.chunk_step(draw(3), lambda slot: 9 + slot).observation
    yield from (observation[name] for name in names)


@pytest.mark.parametrize(
    ("env", "cameras"),
    [
        (PRESS_BUTTON, ("front", "wrist")),
        ("HalfCheetah-v5", ()),
        (functools.partial(gymnasium.make, id="Hopper-v5"), ()),
        (MovedReacher, ()),
    ],
    ids=["tabletop", "batched", "single", "moved"],
)
def test_images_are_the_same_bits_beside_and_apart(env: Any, cameras: tuple[str, ...]) -> None:
    beside = make_cell(request(env, "beside", cameras=cameras), N)
    asked = request(env, "own", cameras=cameras)
    fields = describe_env(asked)["drawing"]
    context: Any = Context(fields, slots=N)
    context.draw = DrawWorker(context, env=asked, pool="poses")
    drawer = RemoteDrawer(context, 1, host="elsewhere", pool="poses", deadline_s=5.0)
    apart = make_cell(asked, N, drawer=drawer)
    seen = set()
    for one, other in zip(sampled(beside, 4), sampled(apart, 4), strict=True):
        np.testing.assert_array_equal(one, other)
        seen.add(one.tobytes())
    assert len(seen) > 4
    assert context.asked >= 7
    for cell in (beside, apart):
        cell.close()
    context.draw.close()


def test_only_who_asks_for_it_is_told_what_a_row_holds() -> None:
    assert describe_env("HalfCheetah-v5")["drawing"] is None
    assert describe_env(request("HalfCheetah-v5", "beside"))["drawing"] is None
    fields = {each["name"]: each for each in describe_env(request(PRESS_BUTTON, "own"))["drawing"]}
    assert fields["images"]["shape"] == [1, 32, 40, 3]
    assert fields["pose/geom_xpos"]["dtype"] == "float64"
    assert {"pose/geom_rgba", "pose/light_diffuse", "pose/cam_xmat"} <= set(fields)
    with pytest.raises(BadInput, match=r"place.*'beside' or 'own'"):
        Pixels(place="there")  # type: ignore[arg-type]


@pytest.mark.process
@pytest.mark.timeout(180)
def test_a_draw_host_trains_the_same_bits_and_alone_loads_opengl(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where it is set, `import mujoco` loads OpenGL; renderers of this process have set it.
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    expected = _trained(launch, "--mode", "serial", "--place", "own")
    assert np.isfinite(expected).all()
    central = ("--hosts", "2", "--policy", "central")
    assert np.array_equal(_trained(launch, "--place", "own", *central), expected)
    own = ("--place", "own", "--hosts", "1", "--cell", "2")
    run = launch("drawing.py", *own, "--iterations", "1000000")
    assert run.wait_iterations(1, 90), run.stderr
    hosts = run.hosts()
    assert set(hosts) == {"host-0", "draw"}
    loads = {name for name, pid in hosts.items() if _loads_opengl(pid)}
    assert loads == {"draw"}
    os.kill(hosts["draw"], signal.SIGKILL)
    assert run.finish(30) == 1
    assert "draw" in run.stderr.splitlines()[0]
    assert "SIGKILL" in run.stderr.splitlines()[0]


def _trained(launch: Any, *options: str) -> np.ndarray:
    run = launch("drawing.py", *options, "--cell", "2")
    assert run.finish(90) == 0, run.stderr
    return read_checkpoint(run.run_dir / "checkpoint").parameters


def _loads_opengl(pid: int) -> bool:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return any(library in maps for library in GL_LIBRARIES)
