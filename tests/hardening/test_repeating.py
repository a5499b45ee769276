"""R4: equal settings give equal bytes. R16: one process at a time works in a folder, and no clock decides anything."""

import csv
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import kills
import pytest
from conftest import small_yaml
from forked_workers import fork_workers

from medfed import train
from medfed.federation.message import digest
from medfed.outputs.run_folder import RunFolder, RunFolderLockedError

pytestmark = pytest.mark.hardening
RESULTS = ("model.safetensors", "cases.csv", "history.csv")
SITE_ORDERS = ("[BMC, HK, UCL]", "[UCL, HK, BMC]", "[HK, UCL, BMC]")
DAY_S = 86_400
ZONES = ("UTC", "Pacific/Kiritimati", "America/St_Johns", "Europe/Berlin")


def digest_of(folder: Path, names=RESULTS) -> str:
    """Return the checksum of the results of a run, and of the sorted rows of its ledger."""
    with open(folder / "ledger.csv", newline="") as file:
        rows = sorted(map(repr, csv.reader(file)))
    return digest(*((folder / name).read_bytes() for name in names), "\n".join(rows).encode())


def arguments(config: Path, out: Path, *more: str) -> list[str]:
    return [str(config), "--out", str(out), "--quiet", "--device", "cpu", *more]


def test_r4_equal_runs_have_equal_bytes(measurement, small_phantom, tmp_path, monkeypatch):
    (config := tmp_path / "config.yaml").write_text(small_yaml(small_phantom))
    n_fresh, n_here = measurement.count(4, 2), measurement.count(6, 3)
    digests = {}
    for number in range(n_fresh):
        out = tmp_path / f"fresh_{number}"
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-m", "medfed.train", *arguments(config, out)]
        subprocess.run(command, check=True, env=environment, timeout=300, capture_output=True)
        digests[out.name] = digest_of(out)
    fork_workers(monkeypatch)
    for number in range(n_here):
        out, jobs = tmp_path / f"here_{number}", 1 + number % 2
        order = f"data.sites={SITE_ORDERS[number % len(SITE_ORDERS)]}"
        assert train.main(arguments(config, out, "--jobs", str(jobs), "--set", order)) == 0
        digests[out.name] = digest_of(out)
    assert train.main(arguments(config, tmp_path / "other", "--seed", "4")) == 0
    n = len(set(digests.values()))
    is_other = digest_of(tmp_path / "other") not in digests.values()
    measurement.report(
        f"{n_fresh} runs with other PYTHONHASHSEEDs, {n_here} with permuted sites and with 1 and 2 jobs",
        ("1 checksum of model, scores, history and ledger", f"{n} of {len(digests)} runs", n == 1),
        (f"another seed gives {'another' if is_other else 'the same'} checksum", is_other),
    )


def n_that_run(folder: Path, n: int, locked) -> tuple[int, int]:
    """Start n processes at the same time; return how many work in the folder together, and how many are refused."""
    reading, writing = os.pipe()
    children = []
    for _ in range(n):
        if (child := os.fork()) == 0:
            os.close(writing)
            os.read(reading, 1)  # ends when the parent closes its end, for all at once
            code = 0
            try:
                with locked(RunFolder(folder)):
                    time.sleep(3)
            except RunFolderLockedError as error:
                code = 2 if "is running here; wait for it" in str(error) else 1
            finally:
                os._exit(code)
        children.append(child)
    time.sleep(0.5)
    os.close(writing), os.close(reading)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return codes.count(0), codes.count(2)


def test_r16_simultaneous_starts(measurement, tmp_path):
    n = measurement.count(50, 10)
    n_run, n_refused = n_that_run(tmp_path / "run", n, RunFolder.locked)
    (tmp_path / "free").mkdir()
    n_control, _ = n_that_run(tmp_path / "free", n, nullcontext)
    measurement.report(
        f"{n} processes that start in one folder at the same time",
        (f"1 works, {n - 1} are refused", f"{n_run} works, {n_refused} refused", n_run == 1 and n_refused == n - 1),
        (f"without the lock {n_control} work", n_control > 1),
    )


@contextmanager
def skewed(seconds: float, zone: str):
    """The clock is wrong by some seconds, and jumps by an hour between any two looks at it, as in a change of time."""
    real, before, n = time.time, os.environ.get("TZ"), [0]

    def wrong() -> float:
        n[0] += 1
        return real() + seconds + 3600 * (n[0] % 2)

    os.environ["TZ"] = zone
    time.tzset()
    try:
        with patch("time.time", wrong):
            yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def test_r16_wrong_clocks(measurement, tmp_path):
    cases = measurement.some([(sign * DAY_S, zone) for sign in (-1, 0, 1) for zone in ZONES], 3)
    kills.work(tmp_path / "right")
    expected, n_equal = kills.results(tmp_path / "right"), 0
    for number, (seconds, zone) in enumerate(cases):
        path = tmp_path / str(number)
        with skewed(seconds, zone):
            killed = kills.in_child(partial(kills.work, path), "SIGKILL", 0.5)
            assert killed in (0, -signal.SIGKILL)
        with skewed(-seconds, zone):
            kills.work(path)
        n_equal += kills.results(path) == expected
    timings = {(path / "timings.csv").read_bytes() for path in tmp_path.iterdir()}
    n = len(cases)
    measurement.report(
        f"runs that are killed and resumed while the clock is wrong by a day or by hours ({len(cases)} cases)",
        (f"{n} of {n} with the result of a right clock", f"{n_equal} of {n}", n_equal == n),
        (f"{len(timings)} different files of times in {n + 1} runs", len(timings) > 1),
    )
