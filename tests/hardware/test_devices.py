import os
import resource
import subprocess
import sys

import pytest

from rlinf_async.errors import BadInput
from rlinf_async.hardware import devices


@pytest.fixture
def file_limit(monkeypatch):
    """Pretend limits: (soft, hard), and what was set."""
    state = {"limits": (256, 256), "set": None}
    monkeypatch.setattr(resource, "getrlimit", lambda _: state["limits"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: state.update(set=limits))
    return state


def test_cores_are_those_of_the_affinity_mask():
    assert devices.available_cores() == tuple(sorted(os.sched_getaffinity(0)))


def _machine(tmp_path, group_line, files):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\nHugePages_Total: 0\n")
    (proc / "self/cgroup").write_text(group_line)
    for name, text in files.items():
        path = cgroup / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": proc, "cgroup": cgroup}


@pytest.mark.parametrize(
    ("group_line", "files", "expected"),
    [
        ("", {}, 1_024_000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "5\n"}, 1_024_000),
        ("0::/a/b\n", {"a/memory.max": "5000\n", "a/memory.current": "2000\n"}, 3000),
        ("0::/\n", {"memory.max": "5000\n", "memory.current": "2000\n"}, 3000),
        (
            "0::/a\n",
            {
                "a/memory.max": "5000\n",
                "a/memory.current": "4000\n",
                "a/memory.stat": "anon 1\ninactive_file 1500\n",
            },
            2500,
        ),
        (
            "4:cpu:/x\n3:memory,hugetlb:/job\n",
            {
                "memory/job/memory.limit_in_bytes": "9000\n",
                "memory/job/memory.usage_in_bytes": "10000\n",
            },
            0,
        ),
        (
            "3:memory:/only/outside\n",
            {"memory/memory.limit_in_bytes": "9000\n", "memory/memory.usage_in_bytes": "1000\n"},
            8000,
        ),
    ],
)
def test_available_memory_is_the_least_of_machine_and_groups(tmp_path, group_line, files, expected):
    assert devices.memory_available_bytes(**_machine(tmp_path, group_line, files)) == expected


def test_available_memory_of_this_machine_is_plausible():
    summary = devices.machine_summary()
    assert 0 < devices.memory_available_bytes() <= summary["memory_bytes"]
    assert summary["cores"] == len(devices.available_cores())
    assert summary["cpu"]
    assert os.uname().nodename not in summary.values()


def test_enough_files_change_nothing(file_limit):
    devices.raise_file_limit(256)
    assert file_limit["set"] is None


def test_a_low_soft_limit_is_raised_to_the_hard_one(file_limit):
    file_limit["limits"] = (256, 4096)
    devices.raise_file_limit(1000)
    assert file_limit["set"] == (4096, 4096)


def test_without_a_hard_limit_the_soft_one_becomes_what_is_needed(file_limit):
    file_limit["limits"] = (256, resource.RLIM_INFINITY)
    devices.raise_file_limit(1000)
    assert file_limit["set"] == (1000, resource.RLIM_INFINITY)


def test_a_low_hard_limit_is_refused_with_the_command(file_limit):
    with pytest.raises(BadInput) as caught:
        devices.raise_file_limit(1000)
    text = str(caught.value)
    assert "at least 1000" in text
    assert "256 (soft limit), 256 (hard limit)" in text
    assert "ulimit -n 1000" in text


@pytest.mark.process
def test_a_shell_limit_is_seen_by_a_real_process():
    code = "from rlinf_async.hardware.devices import raise_file_limit; raise_file_limit(5000)"
    command = f"ulimit -n 256; exec {sys.executable} -c '{code}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "ulimit -n 5000" in done.stderr
    assert done.returncode == 1
