"""R1: a process that is killed while it saves. R9: a disk that is full, read-only or fails at any operation."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import kills
import pytest
import torch
import untrained_runs
from faulty_disk import FAULTS, FaultyDisk

from medfed.federation.message import State
from medfed.outputs.run_folder import RunFolder

pytestmark = pytest.mark.hardening
N_WEIGHTS = 4 << 20  # float32: a checkpoint of 16 MB


def save_in_place(path: Path, *parts: bytes | str) -> None:
    """What `write_atomically` replaces: the old file is opened and overwritten."""
    with open(path, "wb") as file:
        for part in parts:
            file.write(part.encode() if isinstance(part, str) else part)


@contextmanager
def all_saved_in_place():
    """A control: all files of a run are overwritten."""
    with patch("medfed.outputs.run_folder.write_atomically", save_in_place):
        yield


def n_unreadable(save: Callable[[int], object], load: Callable[[], object], n: int, rng) -> int:
    """Kill a process that saves in a loop, n times; return after how many kills something cannot be loaded."""
    n_bad = 0
    for _ in range(n):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            number = 0
            while True:
                save(number := number + 1)
                os.write(writing, b"s")
        os.read(reading, 1)  # the first save takes longer than the later ones
        time.sleep(rng.uniform(0.02, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading), os.close(writing)
        try:
            load()
        except Exception:
            n_bad += 1
    return n_bad


def test_r1_killed_while_saving(measurement, tmp_path):
    folder, weights = RunFolder(tmp_path / "run"), torch.zeros(N_WEIGHTS)
    folder.create()
    states = [State(number, {"w": weights + number}) for number in (0, 1)]

    def load_all() -> None:
        assert folder.rounds() == [0, 1], "there is at least one generation"
        for number in folder.rounds():
            assert torch.equal(folder.load_state(number).weights["w"], states[number].weights["w"])

    for state in states:
        folder.save_state(state)
    n, rng = measurement.count(200, 10), measurement.rng("R1")
    save, torch_path = lambda number: folder.save_state(states[number % 2]), tmp_path / "in_place.pt"
    n_bad = n_unreadable(save, load_all, n, rng)
    with all_saved_in_place():
        n_control = n_unreadable(save, load_all, n, rng)
    save_by_torch = lambda number: torch.save({"w": weights}, torch_path)  # noqa: E731
    n_torch = n_unreadable(save_by_torch, lambda: torch.load(torch_path, weights_only=True), n, rng)
    measurement.report(
        f"SIGKILL after 20 to 150 ms of saving checkpoints of {4 * N_WEIGHTS >> 20} MB in a loop",
        (f"0 of {n} with an unreadable checkpoint", f"{n_bad} of {n}", n_bad == 0),
        (f"saved in place {n_control} of {n}, torch.save in place {n_torch} of {n}", n_control > 0 and n_torch > 0),
    )


def failures(run: Callable[[Path], object], results: Callable[[Path], object], cases: list[tuple[int, str]]) -> list:
    """Return the faults after which a run is not resumed to its results, or leaves a temporary file."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        run(Path(name) / "alone")
        expected = results(Path(name) / "alone")
        for k, fault in cases:
            path, why = Path(name) / "run", ""
            try:
                with FaultyDisk(k, fault):
                    run(path)
                why = "no error"
            except OSError:
                why = "left a temporary file" if list(path.rglob("*unfinished*")) else ""
            try:
                run(path)
                why = why or ("" if results(path) == expected else "another result")
            except Exception as error:
                why = f"not resumed: {error}"
            shutil.rmtree(path)
            wrong += [f"{why} after {fault} at operation {k}"] if why else []
    return wrong


def n_operations(run: Callable[[Path], object], folder: Path) -> int:
    with FaultyDisk() as disk:
        run(folder)
    return disk.n_operations


def untrained(path: Path) -> None:
    path.mkdir(exist_ok=True)
    untrained_runs.work(path)


def test_r9_a_fault_at_every_operation_of_a_run_without_training(measurement, tmp_path):
    n_all = n_operations(untrained, tmp_path / "run")
    cases = measurement.some([(k, fault) for k in range(1, n_all + 1) for fault in FAULTS], 60)
    n = len(cases)
    wrong = failures(untrained, untrained_runs.content, cases)
    with all_saved_in_place():
        n_control = len(failures(untrained, untrained_runs.content, cases))
    measurement.report(
        f"{', '.join(FAULTS)} at each of the {n_all} operations on files of a run whose training is left out",
        (
            f"{n} of {n} faults end with the error, without temporary files, and the run is resumed",
            f"{n - len(wrong)} of {n}",
            not wrong,
        ),
        (f"saved in place {n - n_control} of {n}", n_control > 0),
        wrong,
    )


def test_r9_a_fault_during_training(measurement, tmp_path):
    n_all = n_operations(kills.work, tmp_path / "run")
    cases = measurement.some([(k, FAULTS[k % len(FAULTS)]) for k in range(1, n_all + 1)], 10)
    n = len(cases)
    wrong = failures(kills.work, kills.results, cases)
    some = cases[:: max(1, n // 20)]
    with all_saved_in_place():
        n_control = len(failures(kills.work, kills.results, some))
    measurement.report(
        f"one of these faults at each of the {n_all} operations of a run of 4 rounds that trains",
        (f"{n} of {n} resumed to the result of R2", f"{n - len(wrong)} of {n}", not wrong),
        (f"saved in place {len(some) - n_control} of {len(some)}", n_control > 0),
        wrong,
    )


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 2 MB; a test is skipped if that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, timeout=60).returncode:
        pytest.skip("mounting a file system of 2 MB is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_r9_a_real_full_disk(measurement, small_disk, tmp_path):
    """The disk is filled except for some space, so that the run meets its end at different moments."""
    kills.work(tmp_path / "alone")
    expected, n, n_good, n_full = kills.results(tmp_path / "alone"), measurement.count(10, 3), 0, 0
    size = sum(path.stat().st_size for path in (tmp_path / "alone").rglob("*") if path.is_file())
    for free in measurement.rng("R9").sample(range(4096, size, 4096), n):
        usage = shutil.disk_usage(small_disk)
        (small_disk / "filler").write_bytes(bytes(max(0, usage.free - free)))
        try:
            kills.work(small_disk / "run")
        except OSError:
            n_full += 1
        (small_disk / "filler").unlink()
        kills.work(small_disk / "run")
        n_good += kills.results(small_disk / "run") == expected
        shutil.rmtree(small_disk / "run")
    measurement.report(
        "runs on a real file system of 2 MB that is filled up",
        (f"{n} of {n} resumed to the result of R2", f"{n_good} of {n}", n_good == n),
        (f"the disk was full in {n_full} of {n}", n_full > 0),
    )
