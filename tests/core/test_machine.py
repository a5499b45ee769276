"""Cores and memory that this process may use, read from files as Linux has them; and memory that is used again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from medfed.core import machine

GIB = 2**30


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    write(tmp_path, "proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable:   {64 * 2**20} kB\n")
    write(tmp_path, "proc/self/status", f"Name:\tpython\nVmRSS:\t  {2 * 2**20} kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_without_limits_all_cores_and_the_available_memory_count(root):
    assert machine.n_cores() == 16 and machine.available_memory_bytes() == 64 * GIB
    assert machine.max_processes(threads=1) == 16 and machine.max_processes(threads=5) == 3
    assert machine.max_processes(threads=99) == 1


def test_a_control_group_and_the_groups_around_it_limit(root):
    write(root, "proc/self/cgroup", "0::/batch/job_7\n")
    write(root, "sys/fs/cgroup/batch/job_7/cpu.max", "350000 100000\n")
    write(root, "sys/fs/cgroup/batch/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/batch/memory.max", f"{10 * GIB}\n")
    write(root, "sys/fs/cgroup/batch/memory.current", f"{7 * GIB}\n")
    write(root, "sys/fs/cgroup/batch/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    assert machine.n_cores() == 4, "3.5 cores"
    assert machine.available_memory_bytes() == 5 * GIB, "cached files count as free"
    assert machine.max_processes(threads=1) == 2, "of 2 GiB each"


def test_on_another_operating_system_nothing_is_known_about_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.available_memory_bytes() is None and machine.resident_memory_bytes() is None
    assert machine.max_processes(threads=1) == machine.n_cores()


COUNT = """
import json, resource, statistics
from medfed.core.malloc import keep_freed_memory

def median_faults():
    faults = []
    for turn in range(15):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [bytearray(20_000_000) for block in range(5)]  # 24,000 pages
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return int(statistics.median(faults[5:]))

default = median_faults()
keep_freed_memory()
print(json.dumps({"default": default, "keep": median_faults()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_freed_memory_is_used_again_without_page_faults():
    # The median of 10 allocations: a kernel that is short of memory takes pages back now and then.
    faults = json.loads(subprocess.run([sys.executable, "-c", COUNT], capture_output=True, check=True).stdout)
    assert faults["keep"] < faults["default"] / 10, faults
