"""kill -9 at random moments, resume, same bits."""

import json
import multiprocessing

import kills
import pytest


@pytest.mark.parametrize("n_kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_gives_the_same_bits(n_kills, tmp_path):
    """In a process of its own, which is forked with everything imported, as are the runs that it kills."""
    result = tmp_path / "result.json"
    arguments = ("ELCFS (amplitudes)", ("SIGKILL",), n_kills, 0, result)
    process = multiprocessing.get_context("fork").Process(target=kills.main, args=arguments)
    process.start()
    process.join(timeout=600)
    assert process.exitcode == 0
    counts = json.loads(result.read_text())
    assert counts["n_kills"] == n_kills and counts["n_runs"] > 0 and counts["different"] == []
