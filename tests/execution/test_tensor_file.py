"""Our reader of safetensors files reads what their library writes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save, save_file

from rlinf_async.execution.checkpoint import write_checkpoint
from rlinf_async.execution.references import describe_factory
from rlinf_async.execution.spaces import ActionSpec, ArraySpec, Spaces
from rlinf_async.execution.tensor_file import DTYPES, read_tensors
from rlinf_async.models import GaussianActorCritic

ROOT = Path(__file__).parents[2]
TENSORS = st.sampled_from(sorted(DTYPES.values())).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


@given(st.dictionaries(st.text("abc/.ä0", min_size=1, max_size=6), TENSORS, max_size=4))
def test_every_dtype_shape_and_name(tmp_path_factory, tensors):
    path = tmp_path_factory.getbasetemp() / "tensors.safetensors"
    path.write_bytes(save({name: np.array(values, order="C") for name, values in tensors.items()}))
    found = read_tensors(path)
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape
        assert found[name].tobytes() == values.tobytes()
        assert found[name].flags.writeable


def test_metadata_is_no_tensor(tmp_path):
    save_file({"x": np.ones(2)}, tmp_path / "x.safetensors", metadata={"format": "np"})
    assert set(read_tensors(tmp_path / "x.safetensors")) == {"x"}


@pytest.mark.parametrize("kept", [4, 20, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path, kept):
    content = save({"x": np.ones(100)})
    (tmp_path / "x.safetensors").write_bytes(content[:kept])
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        read_tensors(tmp_path / "x.safetensors")


def test_a_dtype_without_a_counterpart_is_named(tmp_path):
    content = save({"x": np.ones(2, np.float16)}).replace(b'"F16"', b'"BF16"').replace(b" ", b"", 1)
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="BF16"):
        read_tensors(tmp_path / "x.safetensors")


def test_a_built_in_policy_loads_and_acts_with_numpy_alone(tmp_path):
    spaces = Spaces(
        observation=(ArraySpec(name="state", shape=(3,), dtype="float32"),),
        action=ActionSpec(kind="continuous", shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,)),
    )
    policy = GaussianActorCritic(spaces, hidden=(8,))
    write_checkpoint(
        tmp_path / "checkpoint",
        parameters=policy.initial_parameters(np.random.default_rng(0)),
        parameter_shapes=policy.parameter_shapes(),
        statistics={"x": np.ones(1)},
        policy={
            "policy": describe_factory(
                GaussianActorCritic, {"spaces": spaces, "hidden": (8,)}, where="test"
            ),
            "spaces": spaces.to_json(),
            "normalize_observations": False,
        },
        manifest={"version": 1},
        optimizer={},
    )
    code = (
        "import sys\n"
        "for name in ('torch', 'safetensors', 'gymnasium', 'mujoco', 'av', 'pyarrow'):\n"
        "    sys.modules[name] = None\n"
        "import rlinf_async.workers.evaluate\n"
        "from rlinf_async import load_policy\n"
        f"print(load_policy({str(tmp_path / 'checkpoint')!r}).act([0.0, 1.0, 2.0]).shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout == "(1,)\n", done.stderr
