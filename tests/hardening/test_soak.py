"""R19: a federation of many rounds needs no more memory, open files or threads than one of a few."""

import ctypes
import gc
import json
import os
import threading
from pathlib import Path

import kills
import pytest
import torch

from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.scaffold import SCAFFOLD
from medfed.outputs.run_folder import RunFolder
from medfed.testing.toy import ToySegmentation

pytestmark = pytest.mark.hardening
SITES = ("east", "north", "south", "west")
MAX_GROWTH = 0.05
LEAK_BYTES = 1 << 20  # of the control, in each round


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(folder: Path, n_rounds: int, leaks: bool) -> None:
    """Do a run, and write memory, open files and threads after each round to `usage.json`."""
    method, toy, usage, leaked = SCAFFOLD(), ToySegmentation(image_side=16, n_images=4), [], []
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed in the forked process would hide growth
    with RunFolder(folder).locked() as run:
        engine = toy.engine(method, SITES, folder=folder / "sites")
        for done in federate(method, engine, toy.start(method), Federation(rounds=n_rounds), 0):
            run.save_round(done, done.state.round)
            if leaks:
                leaked.append((torch.ones(LEAK_BYTES // 4), open(os.devnull)))  # noqa: SIM115
            gc.collect()
            usage.append((memory_bytes(), len(os.listdir("/proc/self/fd")), threading.active_count()))
    (folder / "usage.json").write_text(json.dumps(usage))


def growth(folder: Path, n_rounds: int, leaks: bool = False) -> tuple[float, int, int]:
    """Return by how much memory, open files and threads grow after the first tenth of the rounds."""
    assert kills.in_child(lambda: soak(folder, n_rounds, leaks)) == 0
    usage = json.loads((folder / "usage.json").read_text())
    first, last = usage[max(5, n_rounds // 10)], usage[-1]
    return last[0] / first[0] - 1, last[1] - first[1], last[2] - first[2]


def test_r19_many_rounds(measurement, tmp_path):
    n_rounds = measurement.count(500, 40)
    memory, files, threads = growth(tmp_path / "run", n_rounds)
    n_control = max(40, n_rounds // 5)
    control = growth(tmp_path / "leaking", n_control, leaks=True)
    measurement.report(
        f"{n_rounds} rounds of {len(SITES)} sites (SCAFFOLD), from round {max(5, n_rounds // 10)} on",
        (
            f"memory grows by less than {MAX_GROWTH:.0%}, open files and threads not at all",
            f"memory {memory:+.1%}, files {files:+d}, threads {threads:+d}",
            memory < MAX_GROWTH and files <= 0 and threads <= 0,
        ),
        (
            f"a run of {n_control} rounds that leaks 1 MB and a file in each: memory {control[0]:+.1%}, "
            f"files {control[1]:+d}",
            control[0] >= MAX_GROWTH and control[1] > 0,
        ),
    )
