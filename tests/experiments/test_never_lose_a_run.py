"""kill -9 at random moments, resume, same bits."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize("n_kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_gives_the_same_bits(n_kills):
    done = subprocess.run(
        [sys.executable, HERE / "kills.py", str(n_kills), "0"], cwd=HERE, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{n_kills} kills" in done.stdout and "all equal" in done.stdout
