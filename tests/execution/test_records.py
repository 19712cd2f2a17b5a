"""Records that cross streams and links."""

import numpy as np

from rlinf_async.execution.records import (
    Batch,
    Episode,
    Segment,
    cut_to_slots,
    is_record,
    record_from_json,
    record_to_json,
)

EPISODE = Episode(
    episode_return=3.5, length=7, slot=2, number=0, seed=11, first_version=0, last_version=1
)


def segment(cell, *, oldest=0):
    return Segment(
        cell=cell,
        batch=4,
        row=cell,
        first_slot=cell * 2,
        slots=2,
        horizon=3,
        oldest_version=oldest,
        newest_version=3,
        env_steps=5,
        episodes=(EPISODE,),
    )


def test_a_batch_survives_the_wire():
    batch = Batch(index=4, segments=(segment(0), segment(1)))
    data = record_to_json(batch)
    assert is_record(data)
    assert record_from_json(data) == batch


def test_a_batch_is_as_old_as_its_oldest_segment():
    batch = Batch(index=4, segments=(segment(0, oldest=3), segment(1, oldest=1)))
    assert batch.oldest_version == 1
    assert batch.entries == 2 * 2 * 3
    assert batch.env_steps == 2 * 5
    assert batch.episodes == (EPISODE, EPISODE)


def test_a_smaller_cell_sees_only_its_own_slots_of_a_row():
    row = {"reward": np.zeros((3, 5)), "version": np.zeros(3, np.int64)}
    cut = segment(0).with_arrays(row).arrays
    assert cut["reward"].shape == (3, 2)
    cut["reward"][...] = 1.0
    assert row["reward"][:, :2].all()
    assert not row["reward"][:, 2:].any()
    assert cut_to_slots(row, 4)["version"].shape == (3,)
