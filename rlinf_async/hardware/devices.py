"""What this machine lends to this process: cores, memory, file descriptors."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf_async.errors import BadInput

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def available_cores() -> tuple[int, ...]:
    """The cores this process may run on, ascending (its affinity mask, not the machine's size)."""
    return tuple(sorted(os.sched_getaffinity(0)))


def memory_available_bytes(*, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes that can still be allocated: the least of the kernel's and each cgroup's estimate.

    The kernel's is MemAvailable of /proc/meminfo; a cgroup's (v1 or v2, this process's own and
    every parent) is its limit less its usage, its inactive page cache counting as free.
    """
    found = [_meminfo(proc)["MemAvailable"]]
    for limit_file, usage_file in _cgroup_files(proc, cgroup):
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None:
            cache = _inactive_file_bytes(limit_file.parent / "memory.stat")
            found.append(max(0, limit - max(0, usage - cache)))
    return min(found)


def machine_summary() -> dict[str, Any]:
    """What a figure depends on, for run folders and benchmarks; the host's name is left out."""
    return {
        "cpu": _cpu_model(),
        "cores": len(available_cores()),
        "memory_bytes": _meminfo(_PROC)["MemTotal"],
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def process_cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process; 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # The name in brackets may hold spaces; user and system ticks are fields 14 and 15.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def process_peak_bytes(pid: int) -> int:
    """The largest resident size that a process has had; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(sizes[0]) * 1024 if sizes else 0


def raise_file_limit(needed: int) -> None:
    """Let this process, and the hosts it starts, hold `needed` open files each.

    Raises the soft limit to the hard one where the soft one is too low.

    Raises:
        BadInput: the hard limit is too low as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadInput(
            "open files",
            "this run needs more file descriptors than the limit allows",
            expected=f"at least {needed}",
            got=f"{soft} (soft limit), {hard} (hard limit)",
            fix=f"run `ulimit -n {needed}` (as root, or raise nofile in /etc/security/limits.conf),"
            " or use fewer hosts",
        )
    target = needed if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def _meminfo(proc: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for line in (proc / "meminfo").read_text().splitlines():
        key, _, rest = line.partition(":")
        amount, *unit = rest.split()
        sizes[key] = int(amount) * (1024 if unit == ["kB"] else 1)
    return sizes


def _cgroup_files(proc: Path, cgroup: Path) -> Iterator[tuple[Path, Path]]:
    """(limit file, usage file) of this process's memory cgroups, from its own up to the root."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroup, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = cgroup / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # In a container the path may name a folder that only the machine outside can see; the
        # walk up then ends at the mount's root, which is the container's own group.
        folder = root / path.strip("/")
        for each in (folder, *folder.parents):
            if each != root and root not in each.parents:
                break
            yield each / names[0], each / names[1]


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _inactive_file_bytes(stat_file: Path) -> int:
    try:
        lines = stat_file.read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
