"""Cells and rows: how a run's environments are cut and what a segment's row holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.communication.fields import Layout
from rlinf_async.execution.layout import cut_into_cells, segment_fields
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces

SPACES = Spaces(
    observation=(
        ArraySpec(name="state", shape=(3,), dtype="float32"),
        ArraySpec(name="image", shape=(4, 4, 1), dtype="uint8"),
    ),
    action=ActionSpec(
        kind="continuous", shape=(2,), dtype="float64", low=(-1.0, -1.0), high=(1.0, 1.0)
    ),
)


@given(st.integers(1, 200), st.integers(1, 40))
def test_cells_cover_every_slot_once_and_only_the_last_is_smaller(env_count, size):
    cells = cut_into_cells(env_count, size)
    slots = [s for cell in cells for s in range(cell.first_slot, cell.first_slot + cell.slots)]
    assert slots == list(range(env_count))
    assert all(cell.slots == size for cell in cells[:-1])
    assert [cell.number for cell in cells] == list(range(len(cells)))


def test_a_row_has_one_observation_and_value_more_than_steps():
    shapes = {f.name: f.shape for f in segment_fields(SPACES, horizon=5, slots=7)}
    assert shapes["obs/state"] == (6, 7, 3)
    assert shapes["obs/image"] == (6, 7, 4, 4, 1)
    assert shapes["final/image"] == (5, 7, 4, 4, 1)
    assert shapes["value"] == (6, 7)
    assert shapes["action"] == (5, 7, 2)
    assert shapes["version"] == (5,)


def test_a_row_keeps_the_dtypes_of_observations_and_stores_raw_actions_in_float32():
    fields = segment_fields(SPACES, horizon=2, slots=1)
    dtypes = {f.name: f.dtype for f in fields}
    assert (dtypes["obs/image"], dtypes["obs/state"]) == ("uint8", "float32")
    assert (dtypes["action"], dtypes["reward"]) == ("float32", "float64")
    assert Layout(fields).row_bytes % 64 == 0


def test_spaces_survive_the_wire():
    assert Spaces.from_json(SPACES.to_json()) == SPACES


@pytest.mark.parametrize("count", [1, 16, 17])
def test_a_cell_is_never_empty(count):
    assert all(cell.slots >= 1 for cell in cut_into_cells(count, 16))
