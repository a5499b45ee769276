"""What this process may use of the machine: CPU cores and memory, as limited by affinity and control groups.

Control groups are how Linux, containers and batch systems limit processes. Their files are described in
https://docs.kernel.org/admin-guide/cgroup-v2.html. Those of version 1 are not read: --jobs N limits the processes.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

ROOT = Path("/")  # of the file system in which the operating system describes itself


def n_cores() -> int:
    """CPU cores that this process may use: the machine's, limited by the affinity and the control groups' quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _control_groups():
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit():  # without a limit, it is "max"
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def available_memory_bytes() -> int | None:
    """Memory that new processes can use without swapping, within the control groups' limit; None if unknown."""
    left = [_number(_text(ROOT / "proc/meminfo"), "MemAvailable:", 1024)]
    for folder in _control_groups():
        limit, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
        if limit.isdigit() and used.isdigit():  # the limit is "max" if there is none
            # Cached files count as used, but are dropped when memory is needed.
            cached_bytes = _number(_text(folder / "memory.stat"), "inactive_file") or 0
            left.append(max(0, int(limit) - int(used) + cached_bytes))
    known = [size for size in left if size is not None]
    return min(known) if known else None


def max_processes(threads: int) -> int:
    """How many processes of `threads` threads, each as large as this one, fit the cores and the memory; at least 1."""
    by_cores, free, used = n_cores() // threads, available_memory_bytes(), resident_memory_bytes()
    return max(1, min(by_cores, free // used) if free is not None and used else by_cores)


def resident_memory_bytes() -> int | None:
    """RAM that this process uses now; None if the system does not say it."""
    return _number(_text(ROOT / "proc/self/status"), "VmRSS:", 1024)


def _control_groups() -> list[Path]:
    """Folders of the control groups that limit this process, those of the outer groups too."""
    mounted = ROOT / "sys/fs/cgroup"  # in a container, this is the group of the process
    group = Path(_text(ROOT / "proc/self/cgroup").partition("0::/")[2].strip())
    return [mounted / part for part in (group, *group.parents)]


def _text(path: Path) -> str:
    """Content of a file of the operating system; "" if there is no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str, name: str, unit: int = 1) -> int | None:
    """The number after `name` at the start of a line, times the unit; None if there is no such line."""
    for line in text.splitlines():
        if line.split()[:1] == [name]:
            return int(line.split()[1]) * unit
    return None
