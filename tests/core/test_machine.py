"""Cores and memory that this process may use, read from files as Linux has them."""

import os
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
