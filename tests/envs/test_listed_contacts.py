"""Models with listed contacts: the same bits, and refused where they would not be."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_async.envs.listed_contacts import compile_with_listed_contacts
from rlinf_async.envs.sims import open_sims

ROBOT = """<mujoco><worldbody>
  <geom type="plane" size="5 5 1" {floor}/>
  <body pos="0 0 .3"><freejoint/><geom size=".1" margin=".02" friction="2 .01 .001"/>
    <body pos=".2 0 0"><joint axis="0 1 0"/><geom type="capsule" size=".05 .1" condim="4"/></body>
    <body pos="-.3 0 0"><joint axis="0 1 0"/><geom type="capsule" size=".05 .1" {leg}/></body>
  </body>{more}
</worldbody></mujoco>"""


def written(tmp_path, **parts: str):
    path = tmp_path / "robot.xml"
    path.write_text(ROBOT.format(**{"floor": "", "leg": "", "more": ""} | parts))
    return path


def test_a_falling_robot_has_the_same_bits(tmp_path) -> None:
    path = str(written(tmp_path, leg='euler="0 30 0"'))
    plain, listed = (
        open_sims(path, 4, frame_skip=1, listed_contacts=flag) for flag in (False, True)
    )
    assert (plain.model.npair, listed.model.npair) == (0, 4)
    noise = np.random.default_rng(0).uniform(-1, 1, (4, plain.model.nv))
    touched = 0
    for sims in (plain, listed):
        sims.qvel[...] = noise
    contacts = listed.batch.bind("ncon")
    for _ in range(400):
        for sims in (plain, listed):
            sims.batch.step()
        np.testing.assert_array_equal(plain.batch.state, listed.batch.state)
        touched += int(contacts.sum())
    assert touched > 1000


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"leg": 'solref=".05 1"'}, "geoms differ in solref"),
        ({"more": "<body><freejoint/><geom size='.1'/></body>"}, "not one kinematic tree"),
    ],
)
def test_a_model_with_other_contacts_is_refused(tmp_path, parts, why) -> None:
    with pytest.raises(ValueError, match=why):
        compile_with_listed_contacts(written(tmp_path, **parts))


def test_what_the_compiler_settled_cannot_vary(tmp_path) -> None:
    sims = open_sims(str(written(tmp_path)), 2, frame_skip=1, listed_contacts=True)
    with pytest.raises(ValueError, match="geom_friction cannot vary"):
        sims.vary("geom_friction")
    assert sims.vary("body_mass").shape == (2, sims.model.nbody)
