"""Checkpoints are complete or refused, and come back as they were."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.errors import BadInput
from rlinf_async.execution import checkpoint
from rlinf_async.execution.checkpoint import (
    FILES,
    MARKER,
    join_parameters,
    read_checkpoint,
    split_parameters,
    write_checkpoint,
)

pytest.importorskip("safetensors")

SHAPES = {"z.weight": (3, 2), "a.bias": (3,), "log_std": ()}


def parts(seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "parameters": rng.standard_normal(10).astype(np.float32),
        "parameter_shapes": SHAPES,
        "statistics": {"mean/state": rng.standard_normal(4), "count/state": np.float64(12.0)},
        "policy": {"class": "rlinf_async.models:X", "hidden": [64, 64]},
        "manifest": {"version": seed, "env_steps": 2048, "config": {"env": "A"}},
        "optimizer": {"m": rng.standard_normal(10)[::-1], "steps": np.array([7])},
    }


def test_checkpoint_comes_back_bit_for_bit(tmp_path):
    written = parts()
    write_checkpoint(tmp_path / "deep" / "checkpoint", **written)
    found = read_checkpoint(tmp_path / "deep" / "checkpoint")
    assert found.parameters.tobytes() == written["parameters"].tobytes()
    assert list(found.parameter_shapes.items()) == list(SHAPES.items())
    assert found.policy == written["policy"]
    assert found.manifest == written["manifest"]
    for name in ("statistics", "optimizer"):
        arrays = getattr(found, name)
        assert arrays.keys() == written[name].keys()
        for key, array in written[name].items():
            np.testing.assert_array_equal(arrays[key], array)
            assert arrays[key].dtype == array.dtype
            assert arrays[key].shape == np.shape(array)
            assert arrays[key].flags.writeable
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["checkpoint"]


def test_weights_are_readable_by_name_with_safetensors_alone(tmp_path):
    from safetensors.numpy import load_file

    written = parts()
    write_checkpoint(tmp_path / "c", **written)
    weights = load_file(tmp_path / "c" / "weights.safetensors")
    np.testing.assert_array_equal(weights["a.bias"], written["parameters"][6:9])


@pytest.mark.parametrize("atomic", [True, False])
def test_existing_checkpoint_is_replaced_whole(tmp_path, monkeypatch, atomic):
    if not atomic:
        monkeypatch.setattr(checkpoint, "_exchange", lambda *_: False)
    write_checkpoint(tmp_path / "c", **parts(0))
    write_checkpoint(tmp_path / "c", **parts(1))
    assert read_checkpoint(tmp_path / "c").manifest["version"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_failure_while_writing_leaves_the_old_one_and_no_draft(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "c", **parts(0))
    real, calls = checkpoint._write, []

    def fail_late(path, content):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(checkpoint, "_write", fail_late)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(tmp_path / "c", **parts(1))
    assert read_checkpoint(tmp_path / "c").manifest["version"] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_marker_is_written_last(tmp_path, monkeypatch):
    real, names = checkpoint._write, []

    def note(path, content):
        names.append(path.name)
        real(path, content)

    monkeypatch.setattr(checkpoint, "_write", note)
    write_checkpoint(tmp_path / "c", **parts())
    assert names[-1] == MARKER
    assert set(names[:-1]) == set(FILES)


@pytest.mark.parametrize("name", [*FILES, MARKER])
def test_incomplete_checkpoint_is_refused_by_the_missing_name(tmp_path, name):
    write_checkpoint(tmp_path / "c", **parts())
    (tmp_path / "c" / name).unlink()
    with pytest.raises(BadInput, match=f"incomplete: {name} missing"):
        read_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("name", FILES)
def test_cut_off_file_is_refused(tmp_path, name):
    write_checkpoint(tmp_path / "c", **parts())
    size = (tmp_path / "c" / name).stat().st_size
    os.truncate(tmp_path / "c" / name, size - 3)
    with pytest.raises(BadInput, match=f"{name} was changed or cut off"):
        read_checkpoint(tmp_path / "c")


def test_damaged_content_of_the_right_size_is_refused(tmp_path):
    write_checkpoint(tmp_path / "c", **parts())
    for name in ("weights.safetensors", "manifest.json", MARKER):
        path = tmp_path / "c" / name
        good = path.read_bytes()
        path.write_bytes(b"\xff" * len(good))
        with pytest.raises(BadInput, match=str(tmp_path)):
            read_checkpoint(tmp_path / "c")
        path.write_bytes(good)


def test_missing_checkpoint_names_those_beside_it(tmp_path):
    write_checkpoint(tmp_path / "checkpoint", **parts())
    with pytest.raises(BadInput, match=r"no such checkpoint folder; beside it: checkpoint"):
        read_checkpoint(tmp_path / "chekpoint")


def test_folder_with_other_files_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(BadInput, match=r"chapter\.tex"):
        write_checkpoint(tmp_path / "thesis", **parts())
    write_checkpoint(tmp_path / "c", **parts())
    (tmp_path / "c" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"notes\.txt"):
        write_checkpoint(tmp_path / "c", **parts())


def test_parameters_that_do_not_fit_their_shapes_are_refused(tmp_path):
    wrong = {**parts(), "parameters": np.zeros(9, np.float32)}
    with pytest.raises(ValueError, match=r"expected float32 \(10,\), got float32 \(9,\)"):
        write_checkpoint(tmp_path / "c", **wrong)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=5))
def test_splitting_and_joining_parameters_are_inverse(sizes):
    shapes = {f"p{number}": tuple(size) for number, size in enumerate(sizes)}
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    flat = np.arange(total, dtype=np.float32)
    joined = join_parameters(split_parameters(flat, shapes), shapes)
    np.testing.assert_array_equal(joined, flat)
    assert joined.dtype == np.float32
